"""The engine has its time to confirm a stop once, however often it is asked to stop."""

from __future__ import annotations

import asyncio

import pytest

from sessions.turn.turn import EngineWait
from tests.sessions.recorder import WAIT_S


async def test_a_second_stop_gives_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = EngineWait()
    monkeypatch.setattr("sessions.turn.turn.CONFIRM_S", 0.0)
    wait.stop()
    monkeypatch.setattr("sessions.turn.turn.CONFIRM_S", 10 * WAIT_S)
    wait.stop()
    async with asyncio.timeout(WAIT_S):
        assert await wait.in_time(asyncio.Event().wait()) is None


async def test_a_stop_is_heard_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the time for the one before runs out."""
    wait = EngineWait()
    monkeypatch.setattr("sessions.turn.turn.CONFIRM_S", 0.0)
    waiting = asyncio.create_task(wait.in_time(asyncio.Event().wait()))
    while not waiting.done():
        wait.stop()
        await asyncio.sleep(0)
    assert waiting.result() is None


async def test_a_timeout_of_something_else_is_not_taken_for_an_unconfirmed_stop() -> None:
    async def late() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await EngineWait().in_time(late())
