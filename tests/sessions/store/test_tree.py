"""The tree of a conversation in the store stays whole, whatever is added to it, taken out of it, or made active."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from sessions.errors import Conflict
from sessions.store.client import ACTIVATE, run_script
from sessions.store.codec import encode_message
from sessions.store.history import Beginning, History, Siblings
from tests.sessions.store.test_scripts import KEYS, beginning, ending, message, removal


@pytest.fixture
def history(store: Redis) -> History:
    return History(store, ttl_s=60, replica="here")


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
