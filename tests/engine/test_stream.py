"""What a late reader of a reply gets."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import EngineLost
from engine.messages import Chunk, Finished, FinishReason, Output, Started
from engine.stream import ReplyStream

STARTED = Started("r", 7)
END = Finished("r", FinishReason.STOP, 7, 0, 3)


def stream_of(*outputs: Output) -> ReplyStream:
    stream = ReplyStream("r", lambda _: None)
    for output in outputs:
        stream.put_nowait(output)
    return stream


async def test_a_late_reader_gets_neighbouring_chunks_as_one() -> None:
    stream = stream_of(STARTED, Chunk("r", "a", 1), Chunk("r", "bc", 2), END)
    assert [output async for output in stream] == [STARTED, Chunk("r", "abc", 3), END]


async def test_a_prompt_reader_gets_each_chunk_by_itself() -> None:
    stream = stream_of(Chunk("r", "a", 1))
    assert await anext(stream) == Chunk("r", "a", 1)
    stream.put_nowait(Chunk("r", "b", 1))
    assert await anext(stream) == Chunk("r", "b", 1)


async def test_a_reader_that_waits_is_woken() -> None:
    stream = stream_of()
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.put_nowait(STARTED)
    assert await reader == STARTED


def test_nothing_comes_after_the_end() -> None:
    stream = stream_of(END, Chunk("r", "late", 1))
    stream.lose("too late as well")
    assert stream.get_nowait() == END
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            stream.get_nowait()


def test_a_lost_stream_gives_what_came_before_and_then_raises() -> None:
    stream = stream_of(Chunk("r", "a", 1))
    stream.lose("it died")
    assert stream.get_nowait() == Chunk("r", "a", 1)
    for _ in range(2):
        with pytest.raises(EngineLost, match="it died"):
            stream.get_nowait()


def test_cancel_is_asked_once_and_never_after_the_end() -> None:
    asked: list[str] = []
    stream = ReplyStream("r", asked.append)
    stream.cancel()
    stream.cancel()
    ended = ReplyStream("s", asked.append)
    ended.put_nowait(END)
    ended.cancel()
    assert asked == ["r"]
