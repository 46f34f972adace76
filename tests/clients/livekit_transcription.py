"""LiveKit's plugin for OpenAI: its STT over a realtime transcription session hears what its TTS has said."""

import asyncio
import json

from livekit import rtc
from livekit.agents.stt import SpeechEventType
from livekit.agents.utils import http_context
from livekit.plugins import openai

TEXT = "Tell me a story about a lighthouse."
RATE = 24_000


async def main():
    async with http_context.open():
        tts, stt = openai.TTS(speed=0.8), openai.STT(use_realtime=True)
        stream = stt.stream()
        async for event in tts.synthesize(TEXT):
            stream.push_frame(event.frame)
        silence = bytes(2 * RATE * 2)
        stream.push_frame(
            rtc.AudioFrame(data=silence, sample_rate=RATE, num_channels=1, samples_per_channel=2 * RATE)
        )
        async for event in stream:
            if event.type is SpeechEventType.FINAL_TRANSCRIPT:
                print(json.dumps({"did": "transcribed", "heard": event.alternatives[0].text}))
                break
        await stream.aclose()
        await stt.aclose()
        await tts.aclose()


asyncio.run(main())
