"""Resuming over real sockets: missed events, gaps, grace periods, and turns that go on without a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

REPLY = "This reply was written before it was asked for."


@pytest.fixture
async def by_hand(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine the test moves."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply=REPLY)) as service:
        yield service


async def begin(socket: Socket, engine: ScriptedEngine, words: int, **more: object) -> list[Frame]:
    """Sends a message; returns `accepted` and the deltas of the first words."""
    await socket.send(type="send", client_msg_id="one", content="Hello?", **more)
    frames = await socket.until("accepted")
    while len([frame for frame in frames if frame["type"] == "delta"]) < words:
        engine.step()
        frames.append(await socket.next("delta"))
    return [frame for frame in frames if frame["type"] != "status"]


async def resume(socket: Socket, seen: list[Frame], **more: object) -> Frame:
    """Asks for the events after these frames."""
    place = {"epoch": seen[0]["epoch"], "after_seq": seen[-1]["seq"]} | more
    return await socket.ask(type="resume", conversation_id="default", ref="back", **place)


def text(frames: list[Frame]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


async def test_what_cannot_be_told_again_is_a_gap_with_a_snapshot(by_hand: InProcessService) -> None:
    async with by_hand.socket() as first, by_hand.socket({"client_id": first.ready["client_id"]}) as second:
        seen = await begin(first, by_hand.engine, 2)
        gap = await resume(second, seen, epoch="another")
        snapshot = await second.next()
        by_hand.engine.step(20)
        rest = await second.until("done")
        _, _, metrics = await by_hand.get("/metrics")
    assert "midstream_reader_gaps_total 1.0" in metrics
    assert (gap["type"], gap["ref"], gap["epoch"], gap["min_seq"]) == ("gap", "back", seen[0]["epoch"], 1)
    assert (snapshot["seq"], snapshot["turn_id"]) == (seen[-1]["seq"], seen[0]["turn_id"])
    assert snapshot["text"] + text(rest) == REPLY
    assert rest[0]["first_seq"] == snapshot["seq"] + 1
