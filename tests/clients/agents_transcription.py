"""OpenAI's agents SDK: a `VoicePipeline` hears a stream of sound over a realtime transcription session."""

import asyncio
import json

import numpy as np
from agents import set_tracing_disabled
from agents.voice import OpenAIVoiceModelProvider, StreamedAudioInput, VoicePipeline, VoiceWorkflowBase

TEXT = "Tell me a story about a lighthouse."
RATE = 24_000
PART = RATE // 10


class Parrot(VoiceWorkflowBase):
    """Tells what is heard, and says nothing new."""

    def __init__(self):
        self.heard = asyncio.Queue()

    async def run(self, transcription):
        """Answer what was heard."""
        self.heard.put_nowait(transcription)
        yield TEXT


async def main():
    set_tracing_disabled(True)
    parrot = Parrot()
    pipeline = VoicePipeline(workflow=parrot)
    tts = OpenAIVoiceModelProvider().get_tts_model(None)
    pcm = b"".join([part async for part in tts.run(TEXT, pipeline.config.tts_settings)])
    samples = np.concatenate([np.frombuffer(pcm, np.int16), np.zeros(2 * RATE, np.int16)])
    stream = StreamedAudioInput()
    spoken = await pipeline.run(stream)
    for at in range(0, len(samples), PART):
        await stream.add_audio(samples[at : at + PART])
    async for event in spoken.stream():
        assert event.type != "voice_stream_event_error", event
        if event.type == "voice_stream_event_lifecycle" and event.event == "turn_ended":
            break
    print(json.dumps({"did": "transcribed", "heard": parrot.heard.get_nowait()}))
    await stream.add_audio(None)


asyncio.run(main())
