"""Resuming over real sockets: missed events, gaps, grace periods, and turns that go on without a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import sha256
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


def continuous(frames: list[Frame]) -> bool:
    last = 0
    for frame in frames:
        if frame.get("first_seq", frame["seq"]) != last + 1:
            return False
        last = frame["seq"]
    return True


async def test_a_cut_reply_goes_on_where_the_reader_was(by_hand: InProcessService) -> None:
    async with by_hand.socket() as first:
        client_id = first.ready["client_id"]
        seen = await begin(first, by_hand.engine, 2, grace_s=30)
    by_hand.engine.step(3)
    async with by_hand.socket({"client_id": client_id}) as second:
        resumed = await resume(second, seen)
        assert (resumed["type"], resumed["ref"]) == ("resumed", "back")
        assert resumed["live"] == seen[0]["turn_id"]
        by_hand.engine.step(20)
        seen += await second.until("done")
    assert continuous(seen)
    assert text(seen) == REPLY
    assert seen[-1]["text_sha256"] == sha256(REPLY.encode()).hexdigest()


async def test_without_grace_the_reply_ends_with_its_reader(by_hand: InProcessService) -> None:
    async with by_hand.socket() as first:
        client_id = first.ready["client_id"]
        seen = await begin(first, by_hand.engine, 2)
    async with by_hand.socket({"client_id": client_id}) as second:
        await resume(second, seen)
        frames = await second.until("done")
    assert frames[-1]["cancel"]["cause"] == "disconnect"
    assert text(seen) == "This reply"
    assert frames[-1]["chars"] == len("This reply")


async def test_a_turn_that_continues_is_read_afterwards(by_hand: InProcessService) -> None:
    async with by_hand.socket() as first:
        client_id = first.ready["client_id"]
        seen = await begin(first, by_hand.engine, 1, on_disconnect="continue")
    by_hand.engine.step(20)
    async with by_hand.socket({"client_id": client_id}) as second:
        await resume(second, seen)
        seen += await second.until("done")
    assert continuous(seen)
    assert (text(seen), seen[-1]["reason"]) == (REPLY, "stop")


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


async def test_a_snapshot_where_nothing_runs_has_no_turn(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        seen = await begin(socket, by_hand.engine, 1)
        by_hand.engine.step(20)
        done = (await socket.until("done"))[-1]
        await resume(socket, seen, after_seq=done["seq"] + 1)
        snapshot = await socket.next("snapshot")
    assert (snapshot["turn_id"], snapshot["text"], snapshot["seq"]) == (None, "", done["seq"])


async def test_a_conversation_of_somebody_else_is_not_found(by_hand: InProcessService) -> None:
    async with by_hand.socket() as first, by_hand.socket() as stranger:
        seen = await begin(first, by_hand.engine, 1)
        error = await resume(stranger, seen)
    assert (error["type"], error["code"], error["ref"]) == ("error", "not_found", "back")


async def test_an_ack_is_not_answered_and_counted_at_the_end(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        seen = await begin(socket, by_hand.engine, 2)
        await socket.send(type="ack", conversation_id="default", seq=seen[-1]["seq"])
        assert (await socket.ask(type="ping"))["type"] == "pong"
        by_hand.engine.step(20)
        done = (await socket.until("done"))[-1]
    assert done["usage"]["acked_tokens"] == 2


async def test_a_longer_grace_than_there_is_is_refused(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        error = await socket.ask(type="send", client_msg_id="one", content="Hello?", grace_s=61)
    assert (error["code"], "grace_s" in error["message"]) == ("bad_frame", True)
