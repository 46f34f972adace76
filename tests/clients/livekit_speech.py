"""LiveKit's plugin for OpenAI with its defaults: its TTS (MP3 as events), and its STT, which hears that sound, whole and as a stream."""

import asyncio

from livekit import rtc
from livekit.agents.stt import SpeechEventType
from livekit.agents.utils import combine_frames, http_context
from livekit.plugins import openai
from shared import RATE, STORY, say


async def main():
    async with http_context.open():
        tts = openai.TTS(speed=0.8)
        frames = [event.frame async for event in tts.synthesize(STORY)]
        received = await openai.STT(use_realtime=False).recognize(combine_frames(frames))
        say("spoke", seconds=sum(frame.duration for frame in frames), heard=received.alternatives[0].text)
        stt = openai.STT(use_realtime=True)
        stream = stt.stream()
        silence = rtc.AudioFrame.create(sample_rate=RATE, num_channels=1, samples_per_channel=2 * RATE)
        for frame in (*frames, silence):
            stream.push_frame(frame)
        async for event in stream:
            if event.type is SpeechEventType.FINAL_TRANSCRIPT:
                say("transcribed", heard=event.alternatives[0].text)
                break
        await stream.aclose()
        await stt.aclose()
        await tts.aclose()


asyncio.run(main())
