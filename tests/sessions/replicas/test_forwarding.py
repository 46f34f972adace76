"""A client talks to a replica that does not run its conversation's turn: what it asks reaches the one that does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from sessions.errors import Conflict, Overloaded, StoreDown
from sessions.events import Accepted, Cause, Delta, Done, Reason
from sessions.limits.slots import is_heavy_caller, with_heaviness
from sessions.records import Owner
from sessions.replicas import rpc
from sessions.replicas.rpc import (
    Refusal,
    RefusedElsewhere,
    ReplicaGone,
    RpcResponse,
    decode_message,
    encode_message,
)
from sessions.store.client import COLLECT, Script, run_script
from sessions.store.codec import Keys
from sessions.store.history import Beginning, History
from sessions.store.ownership import RunningTurn
from sessions.turn.turn import Cancel, Cancelled
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder, continuous


async def cancelled_there(
    other: Chat, *, turn_id: str | None = None, message: str | None = None, rollback: bool = False
) -> Cancelled:
    place = None if turn_id else CONVERSATION_ID
    cancel = Cancel(conversation_id=place, turn_id=turn_id, client_msg_id=message, rollback=rollback)
    assert other.sessions.turns.cancel(other.owner, cancel) is None
    return await other.sessions.cancel_elsewhere(other.owner, cancel)


@pytest.mark.parametrize("by", ["its conversation", "its message", "its id"])
async def test_a_cancel_reaches_the_replica_that_runs_the_turn(chat: Chat, other: Chat, by: str) -> None:
    """And ends no other, nor somebody else's."""
    accepted = await chat.running("Hello?", "This", client_msg_id="hello")
    assert await cancelled_there(other, turn_id="turn_x") == Cancelled("turn_x", already=True)
    assert (await cancelled_there(other, message="unheard")).already
    owner, other.owner = other.owner, Owner("anonymous", "bob")
    assert (await cancelled_there(other, turn_id=accepted.turn_id)).already
    assert chat.reader.of(Done) == []
    other.owner = owner
    named: dict[str, Any] = {
        "its conversation": {},
        "its message": {"message": "hello"},
        "its id": {"turn_id": accepted.turn_id},
    }[by]
    assert await cancelled_there(other, **named) == Cancelled(accepted.turn_id, already=False)
    done = await chat.reader.next(Done)
    assert (done.reason, done.cancel and done.cancel.cause) == (Reason.CANCELLED, Cause.CLIENT)
    assert await cancelled_there(other) == Cancelled(None, already=True)


async def test_a_letter_whose_answer_was_lost_is_read_again(
    chat: Chat, other: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store had given the request out, and the connection broke: it is still in the box."""
    lost: list[bytes] = []

    async def losing(
        client: Redis, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
    ) -> Any:
        answer = await run_script(client, script, keys, args)
        if script is COLLECT and answer[1] and not lost:
            lost.extend(answer[1])
            raise StoreDown("The connection broke.")
        return answer

    accepted = await chat.running("Hello?", "This")
    monkeypatch.setattr(rpc, "run_script", losing)
    assert await cancelled_there(other) == Cancelled(accepted.turn_id, already=False)
    assert len(lost) == 1


async def test_a_box_that_is_read_twice_in_the_same_words_loses_and_repeats_nothing(store: Redis) -> None:
    async def read(before: Sequence[bytes]) -> list[bytes]:
        last = hashlib.sha1(before[-1], usedforsecurity=False).hexdigest() if before else ""
        _, messages = await run_script(store, COLLECT, ["box"], [2, len(before), last])
        return cast("list[bytes]", messages)

    await store.rpush("box", "a", "b", "c")
    assert await read([]) == await read([]) == [b"a", b"b"]
    assert await read([b"a", b"b"]) == await read([b"a", b"b"]) == [b"c"]
    await store.rpush("box", "d")
    assert await read([b"a", b"b"]) == [b"c", b"d"]
    assert await read([b"c", b"d"]) == await read([b"c", b"d"]) == []


async def test_what_was_published_counts_as_seen_where_others_watch(chat: Chat, other: Chat) -> None:
    accepted = await chat.running("Hello?", "This")
    await other.history()
    await chat.step()
    chat.reader.set_sent(accepted.turn_id, 0)
    await other.reader.until(lambda: bool(other.reader.of(Delta)))
    chat.cancel()
    done = await chat.reader.next(Done)
    assert done.chars == len(chat.reader.text(accepted.turn_id)) > len("This")
    assert continuous(other.reader.events)
    other.reader.closed = True


async def test_a_message_from_elsewhere_is_of_a_crowd_if_it_was_there(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    count = chat.engine.count_tokens

    async def noting(*args: Any, **kwargs: Any) -> int:
        seen.append(is_heavy_caller())
        return await count(*args, **kwargs)

    monkeypatch.setattr(chat.engine, "count_tokens", noting)
    await chat.running("Hello?", "This")
    for number, is_crowd in enumerate((True, False)):
        with with_heaviness(partial(bool, is_crowd)):
            sending = other.begin_send("And now?", on_busy="interrupt", client_msg_id=f"m{number}")
        assert await sending is None
    assert [is_crowd for is_crowd, _ in groupby(seen)] == [False, True, False]
    chat.cancel()


async def test_a_cancel_finds_a_forwarded_message_between_the_reply_that_it_ended_and_its_own(
    chat: Chat, other: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, may_begin = chat.sessions.storage.history.begin, asyncio.Event()

    async def later(keys: Keys, beginning: Beginning, *, attached: bool) -> bool:
        await may_begin.wait()
        return await begin(keys, beginning, attached=attached)

    await chat.running("Hello?", "This")
    monkeypatch.setattr(chat.sessions.storage.history, "begin", later)
    sending = other.begin_send("And now?", on_busy="interrupt", client_msg_id="two")
    await reader.next(Done)
    cancelled = await cancelled_there(other)
    may_begin.set()
    assert await sending is None
    done = await reader.next(Done, count=2)
    assert (done.turn_id, done.reason) == (cancelled.turn_id, Reason.CANCELLED)
    assert not cancelled.already


async def test_a_message_for_a_dead_replica_is_taken_in_here_and_cancelled_here(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chat.running("Hello?", "This")
    monkeypatch.setattr(chat.sessions.rpc, "_open", lambda *message: None)
    await chat.lose_lease()
    other.engine.script("Now.")
    accepted = await other.running("And now?", on_busy="interrupt", client_msg_id="two")
    ends = [(message.role, message.status) for message in (await other.history()).messages]
    assert ends[:3] == [("user", "complete"), ("assistant", "interrupted"), ("user", "complete")]
    assert other.cancel() == Cancelled(accepted.turn_id, already=False)
    await other.reader.until(lambda: any(done.turn_id == accepted.turn_id for done in other.reader.of(Done)))
    chat.cancel()


async def test_a_replica_that_was_only_away_for_a_moment_keeps_its_turns(
    chat: Chat, other: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease had run out when it was looked for, and it has taken it again; another one may have listed its turn."""

    async def gone(*_: object) -> RpcResponse:
        raise ReplicaGone

    accepted = await chat.running("Hello?", "This")
    monkeypatch.setattr(other.sessions.rpc, "ask", gone)
    assert (await cancelled_there(other)).already
    for peers in (other.sessions, chat.sessions):
        await peers.reaper.reap()
    chats, others = (one.sessions.storage.ownership for one in (chat, other))
    left = RunningTurn(
        owner=chat.owner, conversation_id=CONVERSATION_ID, turn_id=accepted.turn_id, replica=chats.replica
    )
    assert others.relist([left])
    assert await other.reap() == 0
    assert others.relist([left])
    assert [message.status for message in (await chat.history()).messages] == ["complete", "running"]
    chat.cancel()
    assert (await reader.next(Done)).turn_id == accepted.turn_id


def test_a_refusal_says_there_too_when_to_come_again() -> None:
    refusal = Refusal.of(Overloaded("Full.", retry_after_ms=7000))
    answer = decode_message(encode_message(RpcResponse(number="1", refusal=refusal)))
    assert isinstance(answer, RpcResponse)
    assert answer.refusal is not None
    assert RefusedElsewhere(answer.refusal).retry_after_ms == 7000


async def test_a_letter_that_was_not_announced_is_found(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chat.running("Hello?", "This")
    monkeypatch.setattr(chat.sessions.rpc, "wake", lambda: None)
    assert (await asyncio.wait_for(cancelled_there(other), 10)).already is False


async def test_a_repeat_elsewhere_of_a_message_that_was_refused_is_refused_until_that_is_gone(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took in what its sender was told it did not: for a moment it has a turn that is about to leave."""
    base, write = chat.sessions.storage, History.begin

    async def lost(history: History, *args: Any, **options: Any) -> bool:
        await write(history, *args, **options)
        raise StoreDown("The answer was lost.")

    with monkeypatch.context() as patched:
        patched.setattr(base.history, "begin", partial(lost, base.history))
        with pytest.raises(StoreDown):
            await chat.send("Hello?", client_msg_id="one")
    with pytest.raises(RefusedElsewhere, match="again in a moment") as refused:
        await other.send("Hello?", client_msg_id="one")
    assert refused.value.code == "store_unavailable"
    with pytest.raises(Conflict):
        await other.send("Something else.", client_msg_id="one")
    assert other.reader.of(Accepted) == []
    await chat.reap()
    again = await other.send("Hello?", client_msg_id="one")
    assert not again.duplicate
    await eventually(lambda: len(other.engine.requests) == 1)
    await other.finish(again.turn_id)
    await other.wait_idle()
    assert [role for role, _ in await other.messages()] == ["user", "assistant"]


async def test_a_repeat_elsewhere_of_a_queued_message_that_was_refused_is_refused(
    chat: Chat, other: Chat
) -> None:
    """The queue has it, and nobody was told of it; that it leaves is still to be written."""
    await chat.running("Hello?", "This")
    queued = await chat.enqueue("And now?", client_msg_id="two")
    assert (await other.send("And now?", on_busy="enqueue", client_msg_id="two")).duplicate
    waiting = chat.live_conversation.turns.pop()
    chat.sessions.storage.unsettled.add(queued.turn_id)
    other.reader.events.clear()
    with pytest.raises(RefusedElsewhere, match="again in a moment"):
        await other.send("And now?", on_busy="enqueue", client_msg_id="two")
    assert other.reader.of(Accepted) == []
    chat.sessions.storage.unsettled.clear()
    chat.live_conversation.turns.append(waiting)
    chat.cancel()
    await chat.reader.next(Done, count=2)


async def test_a_repeat_elsewhere_is_answered_though_its_runner_takes_nothing_more(
    chat: Chat, other: Chat
) -> None:
    accepted = await chat.running("Hello?", "This", client_msg_id="one")
    draining = asyncio.create_task(chat.sessions.drain(60))
    await asyncio.sleep(0)
    again = await other.send("Hello?", client_msg_id="one")
    assert (again.turn_id, again.duplicate) == (accepted.turn_id, True)
    chat.engine.step(20)
    await draining
    await other.reader.next(Done)
    assert continuous(other.reader.events)


async def test_a_repeat_that_is_refused_elsewhere_is_answered_where_its_reply_ended_meanwhile(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn ended while its replica was asked, which took the repeat for a new message then."""
    accepted = await chat.running("Hello?", "This", client_msg_id="one")

    async def too_late(*_: Any, **__: Any) -> None:
        await chat.finish(accepted.turn_id)
        raise RefusedElsewhere(Refusal("draining", "The server is about to stop.", True))

    monkeypatch.setattr(other.sessions.forwarder, "repeat", too_late)
    again = await other.send("Hello?", client_msg_id="one")
    assert (again.turn_id, again.duplicate) == (accepted.turn_id, True)
    assert (await other.reader.next(Done)).reason is Reason.STOP
