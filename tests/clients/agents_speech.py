"""OpenAI's agents SDK: a `VoicePipeline` with its defaults hears what its own voice has said, whole and as a stream."""

import asyncio

import numpy as np
from agents import set_tracing_disabled
from agents.voice import (
    AudioInput,
    OpenAIVoiceModelProvider,
    StreamedAudioInput,
    VoicePipeline,
    VoiceWorkflowBase,
)
from shared import RATE, STORY, say

PART = RATE // 10


class Parrot(VoiceWorkflowBase):
    """Notes what is heard, and says the text."""

    def __init__(self):
        self.heard = ""

    async def run(self, transcription):
        """Answer what was heard."""
        self.heard = transcription
        yield STORY


async def events(spoken):
    """What a pipeline reports, without errors."""
    async for event in spoken.stream():
        assert event.type != "voice_stream_event_error", event
        yield event


async def main():
    set_tracing_disabled(True)
    tts, parrot = OpenAIVoiceModelProvider().get_tts_model(None), Parrot()
    pipeline = VoicePipeline(workflow=parrot)
    pcm = np.frombuffer(
        b"".join([part async for part in tts.run(STORY, pipeline.config.tts_settings)]), np.int16
    )
    samples = 0
    async for event in events(await pipeline.run(AudioInput(buffer=pcm))):
        if event.type == "voice_stream_event_audio":
            samples += len(event.data)
    say("spoke", seconds=samples / RATE, heard=parrot.heard)
    stream = StreamedAudioInput()
    spoken = await pipeline.run(stream)
    for part in np.array_split(np.concatenate([pcm, np.zeros(2 * RATE, np.int16)]), len(pcm) // PART):
        await stream.add_audio(part)
    async for event in events(spoken):
        if event.type == "voice_stream_event_lifecycle" and event.event == "turn_ended":
            break
    say("transcribed", heard=parrot.heard)
    await stream.add_audio(None)


asyncio.run(main())
