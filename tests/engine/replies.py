"""A real engine's process, and what is said of its replies."""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from engine.api import Streamer
from engine.machine import EngineOptions
from engine.messages import Chunk, Finished, Message, Output, Reasoning
from engine.process.client import EngineClient

HELLO = (Message("user", "hello there"),)


@asynccontextmanager
async def engine_of(
    model: Path,
    *,
    traced: AbstractContextManager[None] = nullcontext(),  # noqa: B008 - does nothing
    client: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[EngineClient]:
    """Run a model in a process of its own, in float32 on a CPU, and wait until it serves."""
    asked = {"device": "cpu", "dtype": "float32", "max_batch": 4} | options
    with traced:
        async with EngineClient(EngineOptions(model=str(model), **asked), **client or {}).running() as engine:
            await engine.ready(timeout_s=100)
            yield engine


async def outputs_of(stream: Streamer) -> list[Output]:
    return [output async for output in stream]


def text_of(outputs: Sequence[Output], kind: type[Chunk | Reasoning] = Chunk) -> str:
    return "".join(output.text for output in outputs if isinstance(output, kind))


def end_of(outputs: Sequence[Output]) -> Finished:
    end = outputs[-1]
    assert isinstance(end, Finished), end
    return end


async def reply_of(stream: Streamer) -> tuple[str, Finished]:
    """Read a reply to its end. Returns its text, and the end."""
    outputs = await outputs_of(stream)
    return text_of(outputs), end_of(outputs)


async def until_it_writes(stream: Streamer) -> str:
    """Return the next piece of text."""
    async for output in stream:
        if isinstance(output, Chunk):
            return output.text
    raise AssertionError("it ended without a text")


def has_ended(pid: int, within_s: float = 10.0) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([descriptor], [], [], within_s)
    os.close(descriptor)
    return bool(ended)
