"""Each write of a conversation happens once, however often it is sent; one that is not the owner's is refused."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from sessions.errors import OwnershipLost, StoreFault
from sessions.events import Accepted, Done, Reason, Removed, Timing, Usage, encode
from sessions.records import MessageRecord, Owner, TurnRecord, digest
from sessions.store.client import APPEND, run_script
from sessions.store.codec import Keys
from sessions.store.history import (
    MAX_SIBLINGS,
    Beginning,
    Ending,
    History,
    Siblings,
    StaleFacts,
)

KEYS = Keys.of(Owner("anonymous", "alice"), "room")
USAGE = Usage(prompt_tokens=1, cached_tokens=0, generated_tokens=1, sent_tokens=1, wasted_tokens=0)
TIMING = Timing(queued_ms=0, first_token_ms=0, total_ms=0)


@pytest.fixture
def history(store: Redis) -> History:
    return History(store, ttl_s=60, replica="here")


def message(name: str, parent: str | None, *, role: Any, content: str) -> MessageRecord:
    return MessageRecord(
        message_id=name,
        parent_id=parent,
        turn_id=name[-1],
        role=role,
        content=content,
        status="complete",
        created_at=1,
    )


def beginning(turn: str, *, seq: int, parent: str | None = None, sent: str | None = None) -> Beginning:
    """Turn `a` has the messages `user-a` and `reply-a`."""
    record = TurnRecord(
        turn_id=turn,
        client_msg_id=sent or f"sent-{turn}",
        digest=digest("Hello?"),
        message_id=f"user-{turn}",
        reply_id=f"reply-{turn}",
        parent_id=parent,
        accepted_seq=seq,
    )
    event = Accepted(
        conversation_id="room",
        client_msg_id=record.client_msg_id,
        turn_id=turn,
        message_id=record.message_id,
        epoch="e",
        seq=seq,
        content="Hello?",
    )
    return Beginning(
        message=message(f"user-{turn}", parent, role="user", content="Hello?"),
        turn=record,
        event=event,
        title="Hello?",
        system="",
        context_from=record.message_id,
    )


def ending(begun: Beginning, *, seq: int, removed: bool = False) -> Ending:
    done = Done(
        conversation_id="room",
        turn_id=begun.turn.turn_id,
        message_id=begun.turn.reply_id,
        seq=seq,
        reason=Reason.STOP,
        chars=2,
        usage=USAGE,
        timing=TIMING,
        text_sha256=digest("Hi"),
        saved=True,
        removed=removed,
    )
    reply = message(begun.turn.reply_id, begun.turn.message_id, role="assistant", content="Hi")
    return Ending(reply=reply, turn=msgspec.structs.replace(begun.turn, done=done))


async def exchange(history: History, turn: str, *, seq: int, parent: str | None = None) -> TurnRecord:
    """A whole exchange, in the two events `seq` and `seq` + 1."""
    begun = beginning(turn, seq=seq, parent=parent)
    await history.begin(KEYS, begun)
    await history.finish(KEYS, ending(begun, seq=seq + 1))
    return begun.turn


def removal(turn: TurnRecord, *, seq: int) -> Removed:
    return Removed(conversation_id="room", turn_id=turn.turn_id, seq=seq)


async def message_ids(history: History) -> list[str]:
    return [message.message_id for message in (await history.branch(KEYS)).messages]


async def journal_seqs(history: History) -> list[int]:
    return [event.seq for event in await history.journal(KEYS, after_seq=0)]


async def test_accepting_twice_accepts_once_and_another_turn_only_after_its_end_on_the_newest_facts(
    history: History,
) -> None:
    for _ in range(2):
        await history.begin(KEYS, beginning("a", seq=1))
    meta = await history.load(KEYS)
    assert meta is not None
    assert (meta.seq, meta.messages, meta.running, meta.leaf) == (1, 1, "a", "user-a")
    assert await journal_seqs(history) == [1]
    with pytest.raises(StaleFacts, match="busy"):
        await history.begin(KEYS, beginning("b", seq=2))
    await history.finish(KEYS, ending(beginning("a", seq=1), seq=2))
    for seq in (1, 2, 4):
        with pytest.raises(StaleFacts, match="moved"):
            await history.begin(KEYS, beginning("b", seq=seq))
    assert await journal_seqs(history) == [1, 2]


async def append(store: Redis, turn: str, *seqs: int) -> bytes:
    events = [(seq, encode(removal(beginning(turn, seq=1).turn, seq=seq)), "") for seq in seqs]
    parts = [part for event in events for part in event]
    (answer,) = await run_script(store, APPEND, KEYS.pair(), ["here", turn, len(events), *parts])
    return cast("bytes", answer)


async def test_appending_twice_appends_once_and_no_hole_nor_for_another_turn(
    history: History, store: Redis
) -> None:
    await history.begin(KEYS, beginning("a", seq=1))
    for seqs in ((2, 3), (2, 3), (3, 4)):
        assert await append(store, "a", *seqs) == b"ok"
    assert await append(store, "a", 6) == b"behind"
    assert await append(store, "b", 5) == b"lost"
    assert await journal_seqs(history) == [1, 2, 3, 4]


async def test_finishing_twice_finishes_once_and_no_other_end_nor_one_behind_a_hole(
    history: History,
) -> None:
    begun = beginning("a", seq=1)
    await history.begin(KEYS, begun)
    with pytest.raises(OwnershipLost):
        await history.finish(KEYS, ending(begun, seq=3))
    for _ in range(2):
        await history.finish(KEYS, ending(begun, seq=2))
    with pytest.raises(OwnershipLost):
        await history.finish(KEYS, ending(begun, seq=2, removed=True))
    assert await message_ids(history) == ["user-a", "reply-a"]
    assert await journal_seqs(history) == [1, 2]
    meta = await history.load(KEYS)
    assert meta is not None
    assert (meta.messages, meta.running, meta.leaf) == (2, None, "reply-a")


async def test_removing_twice_removes_once_and_says_so_each_time(history: History) -> None:
    """A repeated write is the same write: who sent it must learn that it was done."""
    turn = await exchange(history, "a", seq=1)
    with pytest.raises(StaleFacts):
        await history.remove(KEYS, turn, removal(turn, seq=2))
    assert await history.remove(KEYS, turn, removal(turn, seq=3))
    assert await history.remove(KEYS, turn, removal(turn, seq=3))
    assert not await history.remove(KEYS, turn, removal(turn, seq=4))
    assert await message_ids(history) == []
    assert await journal_seqs(history) == [1, 2, 3]


async def test_of_many_siblings_the_nearest_are_told_and_all_are_counted(
    history: History, store: Redis
) -> None:
    """A page stays small, whatever its conversation has become."""
    await exchange(history, "a", seq=1)
    await exchange(history, "b", seq=3, parent="reply-a")
    count = MAX_SIBLINGS + 20
    names = [f"user-b{number}" for number in range(count)]
    (stored,) = await store.hmget(KEYS.conversation, ["message:user-b"])
    fields = {
        f"{kind}:{name}": value
        for name in names
        for kind, value in (("parent", "reply-a"), ("message", stored))
    }
    await store.hset(
        KEYS.conversation, mapping={**fields, "children:reply-a": " ".join(names), "leaf": names[-1]}
    )  # type: ignore[misc]
    assert (await history.branch(KEYS)).siblings[2] == Siblings(names[20:], count, count - 1)
    middle = (await history.branch(KEYS, leaf=names[110])).siblings[2]
    assert (len(middle.shown_ids), middle.shown_ids[100], middle.before) == (MAX_SIBLINGS, names[110], 110)
    assert (await history.branch(KEYS, leaf=names[0])).siblings[2] == Siblings(names[:MAX_SIBLINGS], count, 0)


async def test_a_withdrawn_turn_may_come_again(history: History) -> None:
    """Its late twin, still on its way to the store, may not."""
    begun = beginning("a", seq=1)
    await history.begin(KEYS, begun)
    for _ in range(2):
        await history.withdraw(KEYS, begun.turn, removal(begun.turn, seq=2))
    assert await message_ids(history) == []
    assert await journal_seqs(history) == [1, 2]
    with pytest.raises(StaleFacts):
        await history.begin(KEYS, begun)
    await history.begin(KEYS, beginning("b", seq=3, sent="sent-a"))
    await history.withdraw(KEYS, begun.turn, removal(begun.turn, seq=4))  # in vain: it does not run
    assert await message_ids(history) == ["user-b"]


async def test_a_branch_is_read_newest_first_up_to_a_limit_or_a_message(history: History) -> None:
    await exchange(history, "a", seq=1)
    await exchange(history, "b", seq=3, parent="reply-a")
    short = await history.branch(KEYS, limit=1)
    assert ([one.message_id for one in short.messages], short.older) == (["reply-b"], "user-b")
    from_b = await history.branch(KEYS, last="user-b")
    assert ([one.message_id for one in from_b.messages], from_b.older) == (["user-b", "reply-b"], None)
    elsewhere = await history.branch(KEYS, leaf="reply-a", last="user-b")
    assert [one.message_id for one in elsewhere.messages] == ["user-a", "reply-a"]
    assert (await history.branch(KEYS, leaf="nobody")).messages == []


async def all_of(store: Redis) -> tuple[object, object]:
    return await store.hgetall(KEYS.conversation), await store.xrange(KEYS.journal)


async def test_a_script_that_fails_has_written_nothing(history: History, store: Redis) -> None:
    """A number that is none is seen before the first write."""
    first = await exchange(history, "a", seq=1)
    running = beginning("b", seq=3, parent="reply-a")
    await store.hset(KEYS.conversation, "messages", "many")
    before = await all_of(store)
    with pytest.raises(StoreFault):
        await history.begin(KEYS, running)
    with pytest.raises(StoreFault):
        await history.remove(KEYS, first, removal(first, seq=3))
    assert await all_of(store) == before
    await store.hset(KEYS.conversation, "messages", 2)
    await history.begin(KEYS, running)
    await store.hset(KEYS.conversation, "messages", "many")
    before = await all_of(store)
    with pytest.raises(StoreFault):
        await history.finish(KEYS, ending(running, seq=4))
    with pytest.raises(StoreFault):
        await history.withdraw(KEYS, running.turn, removal(running.turn, seq=4))
    assert await all_of(store) == before
