"""Pipecat's service for OpenAI's Realtime API: two spoken turns, the second interrupted by speech, which the service truncates."""

import asyncio
import os
from functools import partial

from loguru import logger
from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    LLMFullResponseEndFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from shared import MODEL, RATE, Microphone


class Listener(FrameProcessor):
    """Puts what passes it into a queue."""

    def __init__(self, heard):
        super().__init__()
        self.heard = heard

    async def process_frame(self, frame, direction):
        """Hand every frame on."""
        await super().process_frame(frame, direction)
        kinds = (TranscriptionFrame, TTSAudioRawFrame, TTSTextFrame, LLMFullResponseEndFrame, ErrorFrame)
        if isinstance(frame, kinds):
            self.heard.put_nowait(frame)
        await self.push_frame(frame, direction)


async def reply(heard, truncated, on_sound=None):
    """What is replied to what is said, and how much of it was played where it was interrupted."""
    truncated.clear()
    reported = {"heard": "", "said": "", "ms": None, "bytes": 0}
    while True:
        frame = await heard.get()
        match frame:
            case ErrorFrame():
                raise RuntimeError(frame.error)
            case TranscriptionFrame():
                reported["heard"] = frame.text
            case TTSTextFrame():
                reported["said"] += frame.text
            case TTSAudioRawFrame():
                reported["bytes"] += len(frame.audio)
                if on_sound is not None and reported["bytes"] > on_sound[0]:
                    on_sound[1]()
                    on_sound = None
            case LLMFullResponseEndFrame() if reported["bytes"]:
                return reported | ({"ms": truncated[-1]} if truncated else {})


async def main():
    """Reads OPENAI_BASE_URL and OPENAI_API_KEY."""
    logger.remove()
    heard, truncated = asyncio.Queue(), []
    sound = events.AudioInput(
        transcription=events.InputAudioTranscription(), turn_detection=events.TurnDetection()
    )
    llm = OpenAIRealtimeLLMService(
        api_key=os.environ["OPENAI_API_KEY"],
        base_url=f"{os.environ['OPENAI_BASE_URL'].replace('http', 'ws')}/realtime",
        settings=OpenAIRealtimeLLMService.Settings(
            model=MODEL,
            session_properties=events.SessionProperties(audio=events.AudioConfiguration(input=sound)),
        ),
    )
    send = llm.send_client_event

    async def watched(event):
        if isinstance(event, events.ConversationItemTruncateEvent):
            truncated.append(event.audio_end_ms)
        await send(event)

    llm.send_client_event = watched
    task = PipelineTask(
        Pipeline([Listener(heard), llm, Listener(heard)]),
        params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
    )
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))

    async def push(part):
        await task.queue_frame(InputAudioRawFrame(audio=part, sample_rate=RATE, num_channels=1))

    await Microphone(push).talk(partial(reply, heard, truncated))
    await task.cancel()
    await running


asyncio.run(main())
