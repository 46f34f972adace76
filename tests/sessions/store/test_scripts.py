"""Each write of a conversation happens once, however often it is sent; the tree of its messages stays whole."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from sessions.errors import Conflict, OwnershipLost, StoreFault
from sessions.events import Accepted, Done, Reason, Removed, Timing, Usage, encode
from sessions.records import MessageRecord, Owner, TurnRecord, digest
from sessions.store.client import ACTIVATE, APPEND, run_script
from sessions.store.codec import Keys, encode_message
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


class Tree:
    """A conversation that grows at random, and the turns that it had."""

    def __init__(self, history: History, store: Redis, random: Random) -> None:
        self.history = history
        self.store = store
        self.random = random
        self.turns: dict[str, Beginning] = {}

    async def fields(self) -> dict[str, str]:
        found: dict[bytes, bytes] = await self.store.hgetall(KEYS.conversation)  # type: ignore[assignment]
        return {name.decode(): value.decode() for name, value in found.items()}

    async def begins(self) -> Beginning:
        """A turn at any place: behind a reply or at a root, or beside a reply that is there."""
        fields = await self.fields()
        name, seq = f"t{len(self.turns)}", int(fields.get("seq", 0)) + 1
        parent = self.random.choice(["", *_messages(fields, "reply")]) or None
        started = beginning(name, seq=seq, parent=parent)
        if (users := _messages(fields, "user")) and self.random.random() < 0.4:
            answered = self.random.choice(users)
            turn = msgspec.structs.replace(
                started.turn, message_id=answered, parent_id=fields[f"parent:{answered}"] or None
            )
            started = msgspec.structs.replace(started, message=None, turn=turn)
        self.turns[name] = started
        await self.history.begin(KEYS, started)
        return started

    async def step(self) -> None:
        fields = await self.fields()
        match self.random.choice(["turn", "turn", "rollback", "withdraw", "remove", "activate"]):
            case "turn" | "rollback" as what:
                started = await self.begins()
                end = ending(started, seq=started.event.seq + 1, removed=what == "rollback")
                await self.history.finish(KEYS, end)
            case "withdraw":
                started = await self.begins()
                removed = removal(started.turn, seq=started.event.seq + 1)
                await self.history.withdraw(KEYS, started.turn, removed)
                assert (await self.fields()).get("leaf", "") == fields.get("leaf", "")
            case "remove" if self.turns:
                turn = self.turns[self.random.choice(list(self.turns))].turn
                try:
                    await self.history.remove(KEYS, turn, removal(turn, seq=int(fields["seq"]) + 1))
                except Conflict:
                    assert f"children:{turn.reply_id}" in fields
            case "activate" if _messages(fields, ""):
                chosen = self.random.choice(_messages(fields, ""))
                await run_script(self.store, ACTIVATE, [KEYS.conversation], [chosen])
                shown = await self.history.branch(KEYS)
                assert chosen in [one.message_id for one in shown.messages]

    async def is_whole(self) -> None:
        fields = await self.fields()
        messages = set(_messages(fields, ""))
        parents = {name[7:]: value for name, value in fields.items() if name.startswith("parent:")}
        children = {name[9:]: value.split() for name, value in fields.items() if name.startswith("children:")}
        assert parents.keys() == messages
        assert {(child, parent) for parent, below in children.items() for child in below} == set(
            parents.items()
        )
        assert int(fields.get("messages", 0)) == len(messages)
        leaf = fields.get("leaf", "")
        assert leaf in messages if messages else leaf == ""
        assert leaf not in children or not messages
        assert all(one in children for one in messages if one.startswith("user"))


def _messages(fields: dict[str, str], kind: str) -> list[str]:
    return [name[8:] for name in fields if name.startswith(f"message:{kind}")]


@pytest.mark.parametrize("seed", range(6))
async def test_a_tree_stays_whole_at_every_step(seed: int, history: History, store: Redis) -> None:
    tree = Tree(history, store, Random(seed))
    for _ in range(40):
        await tree.step()
        await tree.is_whole()


async def queue_behind_the_running_reply(store: Redis) -> None:
    """A message that came while turn `a` runs hangs below the reply that has no end yet."""
    queued = encode_message(message("user-q", "reply-a", role="user", content="And then?"))
    below: dict[Any, Any] = {
        "message:user-q": queued,
        "parent:user-q": "reply-a",
        "children:reply-a": "user-q",
        "parent:reply-q": "user-q",
        "children:user-q": "reply-q",
        "leaf": "user-q",
    }
    await store.hset(KEYS.conversation, mapping=below)
    await store.hincrby(KEYS.conversation, "messages", 1)


@pytest.mark.parametrize("removed", [False, True])
async def test_what_is_sent_behind_a_running_reply_stays_active_at_its_end(
    history: History, store: Redis, *, removed: bool
) -> None:
    """It goes behind what comes before the reply where that leaves."""
    first = beginning("f", seq=1)
    await history.begin(KEYS, first)
    await history.finish(KEYS, ending(first, seq=2))
    started = beginning("a", seq=3, parent="reply-f")
    await history.begin(KEYS, started)
    await queue_behind_the_running_reply(store)
    branch = await history.branch(KEYS, limit=2)
    assert [one.message_id for one in branch.messages] == ["user-a", "user-q"]
    assert branch.pending == {one: Siblings([one], 1, 0) for one in ("reply-a", "reply-q")}
    assert await history.parent(KEYS, "reply-a") == "user-a"
    await history.finish(KEYS, ending(started, seq=4, removed=removed))
    branch = await history.branch(KEYS)
    left = [] if removed else ["user-a", "reply-a"]
    assert [one.message_id for one in branch.messages] == ["user-f", "reply-f", *left, "user-q"]
    assert branch.messages[-1].parent_id == ("reply-f" if removed else "reply-a")
