"""A store without memory: it is read as before, refuses new turns, and running replies are told as not saved."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions import replica
from sessions.errors import StoreDown
from sessions.events import Done, Resumed
from sessions.records import Owner
from sessions.running import runner
from sessions.store import journal, ownership
from tests.sessions.chat_driver import Chat, serving
from tests.sessions.recorder import continuous
from tests.store_faults import without_memory


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in service; what is looked at now and then is looked at often."""
    for module in (runner, journal):
        monkeypatch.setattr(module, "PATIENCE_S", 0.25)
    for module in (ownership, replica):
        monkeypatch.setattr(module, "RENEW_S", 0.02)


async def test_new_turns_are_refused_and_leave_no_trace(chat: Chat, store: Redis) -> None:
    await chat.exchange("Hello?", "Hello.")
    async with without_memory(store):
        with pytest.raises(StoreDown):
            await chat.send("And now?", client_msg_id="two")
        with pytest.raises(StoreDown):
            await chat.send("Hello?", conversation_id="other")
        assert await chat.texts() == ["Hello?", "Hello."]
        assert await store.keys("ms:{*other}*") == []
    await chat.exchange("And now?", "Now.", client_msg_id="two")


async def test_a_reader_comes_back_and_is_told_what_happens(chat: Chat, store: Redis) -> None:
    """On a replica that the store can't note as watching until it has memory again."""
    await chat.exchange("Hello?", "Hello.")
    engine = ScriptedEngine(by_hand=True, context_tokens=200)
    async with serving(store, engine, alone=False) as other:
        async with without_memory(store):
            await other.resume(other.reader, 1)
            assert other.reader.of(Resumed)[0].replayed == 2
        await chat.exchange("And now?", "Now.")
        await other.reader.next(Done, count=2)
        assert continuous(other.reader.events)
        other.leave()


async def test_leases_are_prolonged(chat: Chat, store: Redis) -> None:
    """Else all replicas would count as dead, and their turns be closed, once there is memory again."""
    lease = f"ms:replica:{chat.sessions.storage.ownership.replica}"
    async with without_memory(store):
        await store.pexpire(lease, 5_000)
        while await store.pttl(lease) <= 5_000:
            assert await store.exists(lease)


async def test_a_replica_starts_and_conversations_are_deleted(chat: Chat, store: Redis, owner: Owner) -> None:
    await chat.exchange("Hello?", "Hello.")
    await chat.exchange("Hello?", "Hello.", conversation_id="other")
    async with without_memory(store), serving(store, alone=False) as other:
        assert [one async for one in other.sessions.erase(owner)] == ["other", "room"]
        assert await store.keys(f"ms:{{{owner}/*") == []
