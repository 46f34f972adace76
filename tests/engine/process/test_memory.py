"""The process of the bundled model takes no more memory than its log says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from app.settings import DEMO_MODEL
from engine.machine import EngineOptions
from engine.messages import EngineStatistics, Finished, Message, Params, Request
from engine.process.client import EngineClient

AT_ONCE = 8
PROMPTS = 16
CACHED = 4 << 20
"""Bytes of one long prompt, about: keys and values that are worth measuring."""


@pytest.fixture
async def engine(capfd: pytest.CaptureFixture[str]) -> AsyncIterator[EngineClient]:
    options = EngineOptions(model=str(DEMO_MODEL), device="cpu", max_batch=AT_ONCE)
    async with EngineClient(options).running() as client:
        await client.ready(timeout_s=100)
        yield client


def prompt(number: int) -> tuple[Message, ...]:
    return (Message("user", f"{number}: " + " ".join(str(word * number % 977) for word in range(1300))),)


async def read(engine: EngineClient, number: int) -> None:
    requested = Request(f"r{number}", prompt(number), Params(max_new_tokens=4))
    *_, end = [output async for output in engine.generate(requested)]
    assert isinstance(end, Finished)
    assert end.error is None


async def test_memory_stays_below_what_is_said(
    engine: EngineClient, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[EngineStatistics] = []

    async def watch() -> None:
        while True:
            seen.append(engine.statistics())
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    numbers = iter(range(1, PROMPTS + 1))

    async def reader() -> None:
        for number in numbers:
            await read(engine, number)

    await asyncio.gather(*(reader() for _ in range(AT_ONCE)))
    async with asyncio.timeout(60):
        while engine.statistics().running or max(one.kv_cached_bytes for one in seen) < CACHED:  # noqa: ASYNC110 - nobody is notified
            await asyncio.sleep(0.05)
    watching.cancel()
    found = re.search(r"memory: at most about ([\d,]+) MB", capfd.readouterr().err)
    assert found is not None
    bound = int(found[1].replace(",", "")) * 10**6
    assert bound < 10**9, "it is a model of 5 MB"
    assert max(one.resident_bytes for one in seen) < bound
