"""A store that comes back with less than it had: turns end all the same, and whoever saw more is told of another epoch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from sessions.events import Accepted, Done, Gap, Snapshot
from tests.sessions.chat import Chat
from tests.sessions.recorder import Recorder, continuous


@asynccontextmanager
async def forgetting(chat: Chat, store: Redis) -> AsyncIterator[None]:
    """What is written within is gone behind it."""
    kept = [await store.dump(key) for key in chat.keys.pair()]
    yield
    for key, dump in zip(chat.keys.pair(), kept, strict=True):
        await store.restore(key, 0, dump or b"", replace=True)


async def test_a_turn_whose_text_the_store_lost_is_closed(chat: Chat, store: Redis, reader: Recorder) -> None:
    await chat.running("Hello?", "This")
    async with forgetting(chat, store):
        await chat.step()
    chat.engine.step()
    await chat.quiet()
    assert chat.engine.statistics().cancels == 1
    gap, snapshot = await reader.next(Gap), await reader.next(Snapshot)
    assert gap.epoch != reader.of(Accepted)[0].epoch
    assert (snapshot.turn_id, snapshot.text) == (reader.of(Accepted)[0].turn_id, "This")
    assert await chat.sessions.parts.peers.reaper.reap() == 1
    assert (await reader.next(Done)).seq == snapshot.seq + 1
    assert await chat.told() == [("user", "Hello?"), ("assistant", "This")]
    await chat.exchange("And now?", "Now.")
    told = reader.events[reader.events.index(reader.of(Snapshot)[-1]) + 1 :]
    assert continuous(told)


async def test_an_end_that_the_store_lost_comes_once_more_in_another_epoch(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    accepted = await chat.running("Hello?", "This")
    kept = {key: await store.dump(key) for key in await store.keys("ms:*")}
    chat.engine.step(20)
    told = await reader.next(Done)
    await chat.quiet()
    for key, dump in kept.items():
        await store.restore(key, 0, dump or b"", replace=True)
    back = Recorder()
    await chat.resume(back, told.seq, epoch=accepted.epoch)
    gap, snapshot = await back.next(Gap), await back.next(Snapshot)
    assert (gap.epoch != accepted.epoch, snapshot.turn_id) == (True, accepted.turn_id)
    assert await chat.sessions.parts.peers.reaper.reap() == 1
    assert (await back.next(Done)).seq == snapshot.seq + 1
    assert await chat.told() == [("user", "Hello?"), ("assistant", "This")]
    back.closed = True
    chat.leave(back)
