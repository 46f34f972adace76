"""OpenAI's agents SDK: a `VoicePipeline` with its defaults hears what its own voice has said."""

import asyncio
import json

import numpy as np
from agents import set_tracing_disabled
from agents.voice import AudioInput, OpenAIVoiceModelProvider, VoicePipeline, VoiceWorkflowBase

TEXT = "Tell me a story about a lighthouse."
RATE = 24_000


class Parrot(VoiceWorkflowBase):
    """Notes what is heard, and says the text."""

    def __init__(self):
        self.heard = ""

    async def run(self, transcription):
        """Answer what was heard."""
        self.heard = transcription
        yield TEXT


async def main():
    set_tracing_disabled(True)
    tts = OpenAIVoiceModelProvider().get_tts_model(None)
    parrot = Parrot()
    pcm = b"".join([part async for part in tts.run(TEXT, VoicePipeline(workflow=parrot).config.tts_settings)])
    spoken = await VoicePipeline(workflow=parrot).run(AudioInput(buffer=np.frombuffer(pcm, np.int16)))
    samples = 0
    async for event in spoken.stream():
        assert event.type != "voice_stream_event_error", event
        if event.type == "voice_stream_event_audio":
            samples += len(event.data)
    print(json.dumps({"did": "spoke", "seconds": samples / RATE, "heard": parrot.heard}))


asyncio.run(main())
