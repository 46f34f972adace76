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


async def test_messages_wait_in_order_and_are_told_their_place(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        first = await begin(socket, by_hand)
        second = await send_message(socket, "two", on_busy="enqueue")
        third = await send_message(socket, "three", on_busy="enqueue")
        assert "queue_position" not in first
        assert (second["type"], second["queue_position"], third["queue_position"]) == ("accepted", 1, 2)
        ends = [await end(socket, by_hand) for _ in range(3)]
        assert [done["turn_id"] for done in ends] == [each["turn_id"] for each in (first, second, third)]
        assert (second["parent_id"], third["parent_id"]) == (ends[0]["message_id"], ends[1]["message_id"])
        assert [content for content, _ in await history_pairs(socket)] == [
            "one?",
            REPLY,
            "two?",
            REPLY,
            "three?",
            REPLY,
        ]


async def test_another_device_sees_what_waits(by_hand: InProcessService) -> None:
    ann = {"client_id": "ann"}
    async with by_hand.socket(ann) as phone, by_hand.socket(ann) as tablet:
        await begin(phone, by_hand)
        await tablet.ask(type="history")
        mine = await send_message(phone, "two", on_busy="enqueue")
        theirs = await tablet.next("accepted")
        assert theirs["content"] == "two?"
        assert {**mine, "content": "two?"} == {**theirs, "ref": "ref-two"}


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


async def test_a_cancel_of_the_conversation_takes_the_queue(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        first = await begin(socket, by_hand)
        second = await send_message(socket, "two", on_busy="enqueue")
        await socket.send(type="cancel", conversation_id="default", ref="c")
        cancelled = await socket.next("cancelled")
        assert (cancelled["turn_id"], cancelled["already"]) == (first["turn_id"], False)
        ends = [await socket.next("done") for _ in range(2)]
        assert {done["turn_id"] for done in ends} == {first["turn_id"], second["turn_id"]}
        assert [done["reason"] for done in ends] == ["cancelled"] * 2
        assert len(by_hand.engine.requests) == 1


async def test_a_waiting_message_is_cancelled_alone(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        first = await begin(socket, by_hand)
        second = await send_message(socket, "two", on_busy="enqueue")
        await socket.send(type="cancel", turn_id=second["turn_id"])
        done = await socket.next("done")
        assert (done["turn_id"], done["chars"], done["usage"]["generated_tokens"]) == (
            second["turn_id"],
            0,
            0,
        )
        assert done["cancel"]["steps_after"] == 0
        assert (await end(socket, by_hand))["turn_id"] == first["turn_id"]
        assert await history_pairs(socket) == [
            ("one?", "complete"),
            (REPLY, "complete"),
            ("two?", "complete"),
            ("", "cancelled"),
        ]


@pytest.mark.parametrize(("policy", "left"), [("interrupt", 6), ("rollback", 2)])
async def test_whoever_does_not_wait_clears_the_queue(
    policy: str, left: int, by_hand: InProcessService
) -> None:
    """An interrupt leaves the reply that it ended in the history; a rollback leaves nothing."""
    async with by_hand.socket() as socket:
        turns = [await begin(socket, by_hand), await send_message(socket, "two", on_busy="enqueue")]
        await socket.send(type="send", client_msg_id="three", content="three?", on_busy=policy)
        frames = await socket.until("accepted")
        ends = [frame for frame in frames if frame["type"] == "done"]
        assert {done["turn_id"] for done in ends} == {turn["turn_id"] for turn in turns}
        assert {done["cancel"]["cause"] for done in ends} == {policy}
        assert [done.get("removed", False) for done in ends] == [policy == "rollback"] * 2
        assert (await end(socket, by_hand))["reason"] == "stop"
        assert len(await history_pairs(socket)) == left


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


async def test_a_duplicate_of_a_waiting_message_is_told_so(by_hand: InProcessService) -> None:
    async with by_hand.socket() as socket:
        await begin(socket, by_hand)
        accepted = await send_message(socket, "two", on_busy="enqueue")
        again = await send_message(socket, "two", on_busy="interrupt")
        assert (again["duplicate"], again["turn_id"]) == (True, accepted["turn_id"])
        assert (await send_message(socket, "two", content="Other words."))["code"] == "conflict"
