"""Pipecat's services for OpenAI with their defaults: `OpenAITTSService` speaks, `OpenAISTTService` hears that sound."""

import asyncio
import io
import wave

from pipecat.frames.frames import TranscriptionFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.task import PipelineParams
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test
from shared import RATE, STORY, say


def wav(pcm):
    """PCM as a WAV file, as Pipecat's voice detection hands it on."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframes(pcm)
    return file.getvalue()


async def main():
    tts = OpenAITTSService(settings=OpenAITTSService.Settings(speed=0.8))
    spoken, _ = await run_test(
        tts,
        frames_to_send=[TTSSpeakFrame(STORY)],
        pipeline_params=PipelineParams(audio_out_sample_rate=RATE),
        start_timeout=60,
    )
    pcm = b"".join(frame.audio for frame in spoken if isinstance(frame, TTSAudioRawFrame))
    stt = OpenAISTTService()
    received = [frame async for frame in stt.run_stt(wav(pcm))]
    words = " ".join(frame.text for frame in received if isinstance(frame, TranscriptionFrame))
    say("spoke", seconds=len(pcm) / 2 / RATE, heard=words)


asyncio.run(main())
