"""Messages into a running reply over real sockets: they wait, or the running exchange is rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.scripted import ScriptedEngine
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

REPLY = "This reply was written."
WAIT_S = 60


@pytest.fixture
async def by_hand(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose engine the test moves; two messages may wait in a conversation."""
    async with serving(tmp_path, ScriptedEngine(by_hand=True, reply=REPLY), max_queued=2) as service:
        yield service


async def send_message(socket: Socket, msg_id: str, **fields: object) -> Frame:
    """Sends a message; returns `accepted`, or the error."""
    await socket.send(
        **{"type": "send", "client_msg_id": msg_id, "content": f"{msg_id}?", "ref": f"ref-{msg_id}"} | fields
    )
    async with asyncio.timeout(WAIT_S):
        while (frame := await socket.next()).get("ref") != f"ref-{msg_id}":
            pass
    return frame


async def begin(socket: Socket, running: InProcessService) -> Frame:
    """A message whose reply has its first words."""
    accepted = await send_message(socket, "one")
    running.engine.step()
    await socket.next("delta")
    return accepted


async def end(socket: Socket, running: InProcessService) -> Frame:
    """Steps the engine until the next turn ends."""
    async with asyncio.timeout(WAIT_S):
        while True:
            running.engine.step()
            await socket.send(type="ping")
            while (frame := await socket.next())["type"] != "pong":
                if frame["type"] == "done":
                    return frame


async def history_pairs(socket: Socket) -> list[tuple[str, str]]:
    await socket.send(type="history")
    page = await socket.next("history")
    return [(message["content"], message["status"]) for message in page["messages"]]


async def test_more_than_may_wait_are_refused_and_may_come_again(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        assert socket.ready["limits"]["max_queued_turns"] == 2
        await begin(socket, by_hand)
        await send_message(socket, "two", on_busy="enqueue")
        await send_message(socket, "three", on_busy="enqueue")
        refused = await send_message(socket, "four", on_busy="enqueue")
        assert (refused["type"], refused["code"], refused["retryable"]) == ("error", "queue_full", True)
        await end(socket, by_hand)
        accepted = await send_message(socket, "four", on_busy="enqueue")
        assert (accepted["type"], accepted.get("duplicate"), accepted["queue_position"]) == (
            "accepted",
            None,
            2,
        )


async def test_a_message_that_finds_nothing_running_does_not_wait(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        accepted = await send_message(socket, "one", on_busy="enqueue")
        assert (accepted["type"], "queue_position" in accepted) == ("accepted", False)
        assert (await end(socket, by_hand))["reason"] == "stop"


async def test_an_edit_and_another_reply_wait_too(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        first = await begin(socket, by_hand)
        reply = (await end(socket, by_hand))["message_id"]
        await send_message(socket, "two")
        edit = {"type": "edit", "message_id": first["message_id"], "on_busy": "enqueue"}
        again = {"type": "regenerate", "message_id": reply, "on_busy": "enqueue"}
        edited = await send_message(socket, "edit", **edit)
        repeated = await send_message(socket, "again", **again)
        assert (edited["queue_position"], edited["parent_id"]) == (1, None)
        assert (repeated["queue_position"], repeated["message_id"]) == (2, first["message_id"])
        for _ in range(3):
            assert (await end(socket, by_hand))["reason"] == "stop"
        assert [content for content, _ in await history_pairs(socket)] == ["one?", REPLY]
        requested = [request.messages[-1].content for request in by_hand.engine.requests]
    assert requested == ["one?", "two?", "edit?", "one?"]


@pytest.mark.parametrize("policy", ["enqueue", "interrupt", "rollback"])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"content": "word " * 5_000}, "context_overflow"),
        ({"parent_id": "msg_unknown"}, "not_found"),
        ({"type": "edit", "message_id": "msg_unknown"}, "not_found"),
        ({"params": {"max_new_tokens": 0}}, "bad_params"),
    ],
)
async def test_a_refused_message_ends_nothing(
    wrong: Frame, code: str, policy: str, by_hand: InProcessService
) -> None:
    """It leaves no trace, whatever its `on_busy` is."""
    async with by_hand.socket() as socket:
        first = await begin(socket, by_hand)
        refused = await send_message(socket, "two", on_busy=policy, **wrong)
        assert (refused["type"], refused["code"]) == ("error", code)
        done = await end(socket, by_hand)
        assert (done["turn_id"], done["reason"]) == (first["turn_id"], "stop")


async def test_the_reply_that_is_being_written_can_be_made_anew(by_hand: InProcessService) -> None:
    """With an interrupt it ends and becomes a sibling. A rollback would remove the named message, so nothing waits for it."""
    async with by_hand.socket() as socket:
        first = await begin(socket, by_hand)
        await socket.send(type="history")
        reply = (await socket.next("history"))["messages"][-1]["message_id"]
        again: Frame = {"type": "regenerate", "message_id": reply}
        for policy in ("rollback", "enqueue"):
            refused = await send_message(socket, "again", on_busy=policy, **again)
            assert (refused["type"], refused["code"]) == ("error", "not_found")
        accepted = await send_message(socket, "again", on_busy="interrupt", **again)
        assert (accepted["type"], accepted["message_id"]) == ("accepted", first["message_id"])
        done = await end(socket, by_hand)
        await socket.send(type="history")
        answer = (await socket.next("history"))["messages"][-1]
        assert answer["siblings"] == [reply, done["message_id"]]
