"""Failovers that Sentinels carry out: what was acknowledged before, during and after them is in the history.

After a promotion the old primary takes writes for some ten seconds, until the Sentinels make it a replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.scripted import ScriptedEngine
from sessions.errors import Busy, StoreDown
from sessions.events import Done, Reason
from sessions.store.client import Durability, WriteConfirmer, connect
from sessions.store.pool import FairPool, Sentinels
from tests.sessions.chat_driver import Chat, serving
from tests.sessions.server_group import MASTER, Watched, happened, watched_by_sentinel
from tests.store_faults import stalled


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Watched]:
    """A primary, a replica, and three Sentinels that give a failover up after a second."""
    async with watched_by_sentinel(
        tmp_path / "group", sentinels=3, watch=("failover-timeout {} 1000",)
    ) as group:
        yield group


@pytest.fixture
async def store(group: Watched) -> AsyncIterator[Redis]:
    """A client that knows one of the Sentinels, which is not the one that fails over."""
    async with connect(f"redis+sentinel://127.0.0.1:{group.sentinel.port}/{MASTER}") as store:
        yield store


class Talking:
    """Messages that are sent one after the other."""

    def __init__(self, chat: Chat) -> None:
        self.acknowledged: list[str] = []
        self._chat = chat
        self._ends = False
        self._task = asyncio.create_task(self._talk())

    async def _talk(self) -> None:
        while not self._ends:
            content = f"Message {len(self.acknowledged)}"
            with suppress(StoreDown, Busy):  # busy: until what could not be confirmed is undone
                await self._chat.exchange(content, "Yes.")
                self.acknowledged.append(content)

    async def goes_on(self) -> None:
        """Return once three more were acknowledged."""
        more = len(self.acknowledged) + 3

        async def are_more() -> bool:
            if self._task.done():
                self._task.result()  # raises what ended it
            return len(self.acknowledged) >= more

        await happened(are_more)

    async def end(self) -> None:
        """Return once the last one was answered."""
        self._ends = True
        await self._task


def sentinels_of(store: Redis) -> Sentinels:
    pool = store.connection_pool
    assert isinstance(pool, FairPool)
    assert pool.sentinels is not None
    return pool.sentinels


async def writes(store: Redis) -> bool:
    try:
        return bool(await store.set("written", 1))
    except RedisError:
        return False


async def listens_to(store: Redis, sentinels: int) -> None:
    """Return once the client gets the events of so many Sentinels."""

    async def listens() -> bool:
        return len([one for one in sentinels_of(store)._sentinels.values() if one._events]) == sentinels

    assert await writes(store)
    await happened(listens)


async def test_a_command_to_a_sentinel_ends_when_it_is_cancelled(group: Watched, store: Redis) -> None:
    """Wherever the cancellation comes: or following Sentinels would not end. A group that they do not know is an outage."""
    async with sentinels_of(store).client_of(("127.0.0.1", group.sentinel.port)) as client:
        for turns in range(1, 12):
            await client.ping()
            ping = asyncio.create_task(client.ping())
            for _ in range(turns):
                await asyncio.sleep(0)
            if ping.cancel():
                await asyncio.wait([ping], timeout=60)
                assert ping.cancelled()
    async with connect(f"redis+sentinel://127.0.0.1:{group.sentinel.port}/other") as unknown:
        with pytest.raises(RedisError, match="No such master"):
            await unknown.ping()


async def test_a_planned_failover_loses_no_acknowledged_message_and_replies_continue(
    group: Watched, store: Redis
) -> None:
    async with serving(store, ScriptedEngine(by_hand=True, context_tokens=20_000), alone=False) as chat:
        await listens_to(store, 3)
        chat.engine.script("word " * 5000)
        await chat.running("Hello?", "word", conversation_id="another")
        talking = Talking(chat)
        await talking.goes_on()
        await group.promote()
        await talking.goes_on()
        await group.demote()
        await talking.goes_on()
        await talking.end()
        kept = [content for role, content in await chat.messages() if role == "user"]
        assert [content for content in talking.acknowledged if content not in kept] == []
        chat.engine.step(5000)
        await chat.wait_idle()
        done = chat.reader.of(Done)[-1]
        assert (done.conversation_id, done.reason, done.saved) == ("another", Reason.STOP, True)
        page = await chat.sessions.history(chat.owner, chat.reader, "another", limit=5)
        assert page.page.messages[-1].content == "word " * 5000 == chat.reader.text(done.turn_id)


async def test_a_write_before_a_failover_is_not_confirmed_after_it_began(
    group: Watched, store: Redis
) -> None:
    """Nor later: the new primary may not have it."""
    confirming = WriteConfirmer(store, Durability.MEMORY)
    await listens_to(store, 3)
    term = confirming.term
    await confirming.confirm("written", ttl_ms=1000, term=term)
    await happened(group.begins_to_fail_over)
    for _ in range(2):
        with pytest.raises(StoreDown):
            await confirming.confirm("written", ttl_ms=1000, term=term)
        await happened(lambda: writes(store))
    await confirming.confirm("written", ttl_ms=1000, term=confirming.term)


async def test_a_sentinel_that_hangs_holds_up_neither_writes_nor_failovers(
    group: Watched, store: Redis
) -> None:
    confirming = WriteConfirmer(store, Durability.MEMORY)
    await listens_to(store, 3)
    with stalled(group.sentinel.process.pid):
        await confirming.confirm("written", ttl_ms=1000, term=confirming.term)
        term = confirming.term
        await group.fail_over()
        await happened(lambda: writes(store))
        assert confirming.term != term


async def test_a_failover_without_events_is_found(group: Watched, store: Redis) -> None:
    for sentinel in group.sentinels:
        await sentinel.ask("ACL", "SETUSER", "default", "-psubscribe")
    assert await writes(store)
    term = sentinels_of(store).term
    await group.promote()
    await happened(lambda: moved(store, term))
    assert await writes(store)
    assert await group.replica.ask("EXISTS", "written") == 1


async def moved(store: Redis, term: int) -> bool:
    return sentinels_of(store).term != term and sentinels_of(store).is_open


async def test_a_failover_that_is_given_up_leaves_the_primary(group: Watched, store: Redis) -> None:
    await listens_to(store, 3)
    term = sentinels_of(store).term
    await happened(group.begins_to_fail_over)
    with stalled(group.replica.process.pid):
        await happened(lambda: moved(store, term))
        assert await writes(store)
    assert await group.master.ask("EXISTS", "written") == 1
