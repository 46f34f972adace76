"""The `status` events of a turn without text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving


@pytest.fixture
async def busy(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine is stepped by the test: one reply at a time, four tokens of a prompt a step."""
    engine = ScriptedEngine(reply="Here.", by_hand=True, max_batch=1)
    engine.prefill_tokens = 4
    async with serving(tmp_path, engine) as running:
        yield running


async def send_and_wait_status(socket: Socket, conversation_id: str) -> Frame:
    message = {"client_msg_id": conversation_id, "content": "one two three four"}
    await socket.send(type="send", conversation_id=conversation_id, **message)
    return await socket.next("accepted")


def where(accepted: Frame) -> Frame:
    return {"type": "status", **{name: accepted[name] for name in ("conversation_id", "turn_id")}}


async def test_a_turn_that_waits_is_told_its_place_and_then_its_prefill(busy: InProcessService) -> None:
    async with busy.socket() as first, busy.socket() as second:
        await send_and_wait_status(first, "first")
        accepted = await send_and_wait_status(second, "second")
        assert await second.next() == where(accepted) | {"state": "queued", "queue_position": 1}
        busy.engine.step(4)
        assert (await first.until("done"))[-1]["reason"] == "stop"
        assert await second.next() == where(accepted) | {"state": "prefill", "progress": 0.5}
        busy.engine.step()
        delta = await second.next()
        assert (delta["text"], delta["seq"]) == ("Here.", accepted["seq"] + 1)


async def test_places_fall_to_the_first_while_others_leave_the_queue(busy: InProcessService) -> None:
    async with busy.socket() as crowd, busy.socket() as last:
        turns = [await send_and_wait_status(crowd, f"c{number}") for number in range(20)]
        accepted = await send_and_wait_status(last, "last")
        assert (await last.next())["queue_position"] == 20
        for turn in turns[1:]:
            await crowd.send(type="cancel", turn_id=turn["turn_id"])
        places = [20]
        while places[-1] != 1:
            places.append((await last.next("status"))["queue_position"])
        assert places == sorted(set(places), reverse=True)
        busy.engine.step(5)
        assert (await last.next("delta"))["turn_id"] == accepted["turn_id"]
