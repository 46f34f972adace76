"""The process that makes prompts stands still before an image of megabytes, and nobody else's reply or cancel waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from connections.images import image_from_bytes
from engine.api import Streamer
from engine.messages import Chunk, FinishReason, Message, Params, Queued, Request
from engine.process.client import EngineClient
from engine.vision.image import Image
from tests.engine.replies import engine_of, reply_of
from tests.engine.vision_models import folder_of, image
from tests.sample_images import chunk, png
from tests.server_process import child_of

ENDLESS, WINDOW = 40_000, 50_000
HEAVY_BYTES = 2_500_000
"""More than a socket holds."""
PATIENCE_S = 20.0


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineClient]:
    model = folder_of("smolvlm", tmp_path / "smolvlm", window=WINDOW)
    async with engine_of(model, max_batch=2) as client:
        yield client


async def reason_of(stream: Streamer) -> FinishReason:
    async with asyncio.timeout(PATIENCE_S):
        return (await reply_of(stream))[1].reason


def heavy() -> Image:
    return image_from_bytes(png(30, 20, more=chunk(b"fiLl", bytes(HEAVY_BYTES))))


def make_request(name: str, *images: Image, tokens: int = 5) -> Request:
    how = Params(max_new_tokens=tokens, ignore_eos=True)
    return Request(name, (Message("user", "What is this?", images=images),), how)


async def read_chunks(stream: Streamer, chunks: int = 20) -> None:
    """Wait for the next pieces of a reply."""
    async with asyncio.timeout(PATIENCE_S):
        async for output in stream:
            chunks -= isinstance(output, Chunk)
            if chunks == 0:
                return
    pytest.fail("the reply ended")


async def until_queued(stream: Streamer) -> None:
    async for output in stream:
        if isinstance(output, Queued):
            return
    pytest.fail("it was never queued")


async def test_others_stream_and_are_heard_while_an_image_is_not_read(engine: EngineClient) -> None:
    plain, other = (engine.generate(make_request(name, tokens=ENDLESS)) for name in ("plain", "other"))
    await read_chunks(plain)
    await read_chunks(other)
    seeing = engine.generate(make_request("seeing", image(1)))
    await until_queued(seeing)

    assert engine.pid is not None
    stands = child_of(engine.pid, "engine.prompts")
    assert stands is not None
    os.kill(stands, signal.SIGSTOP)
    unread = engine.generate(make_request("unread", heavy()))
    await read_chunks(plain)
    other.cancel()
    unread.cancel()  # nobody waits for what is being written
    for stream in (other, unread):
        assert await reason_of(stream) is FinishReason.CANCELLED
    await read_chunks(plain)  # the step loop has asked for the points of the image that has a place now

    behind = engine.generate(make_request("behind"))
    await read_chunks(plain)
    plain.cancel()
    assert await reason_of(plain) is FinishReason.CANCELLED

    os.kill(stands, signal.SIGCONT)
    ends = [await reason_of(stream) for stream in (seeing, behind)]
    assert ends == [FinishReason.LENGTH] * 2
