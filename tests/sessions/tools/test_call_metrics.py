"""Calls of server tools are counted by how they ended."""

from __future__ import annotations

import asyncio

import pytest

from sessions.tools.tool_registry import Outcome, ToolCounters, ToolFailed, ToolLost
from tests.sessions.tools.tool_calls import box_of, call_of


def fine() -> str:
    """Work."""
    return "done"


def broken() -> str:
    """Fail."""
    raise ToolFailed("Broken.")


def gone() -> str:
    """Be lost."""
    raise ToolLost("Gone.")


async def test_each_end_of_a_call_is_counted_under_its_own_name() -> None:
    running = asyncio.Event()

    async def endless() -> str:
        """Wait."""
        running.set()
        return await asyncio.Event().wait() and ""

    box = box_of(fine, broken, gone, endless)
    async with box.running():
        await box.run("fine", {}, call_of())
        for name in ("broken", "gone", "nobody's"):
            with pytest.raises(ToolFailed):
                await box.run(name, {}, call_of())
        call = asyncio.create_task(box.run("endless", {}, call_of()))
        await running.wait()
        assert (box.counters.started, box.counters.running) == (5, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert box.counters.running == 0
    assert box.counters.ended == {Outcome.DONE: 1, Outcome.FAILED: 2, Outcome.LOST: 1, Outcome.CANCELLED: 1}


def test_the_seconds_of_calls_are_added_up() -> None:
    clock = iter([10.0, 12.5, 20.0, 21.0])
    tally = ToolCounters(lambda: next(clock))
    for _ in range(2):
        with tally.call():
            pass
    assert tally.seconds[Outcome.DONE] == 3.5
