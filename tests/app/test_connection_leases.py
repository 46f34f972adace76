"""Connections in a real store, counted over two replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from sessions.errors import StoreDown
from sessions.limits.quotas import ConnectionLeases, TooManyConnections
from sessions.records import Client
from sessions.store.client import connect
from tests.store_faults import without_memory

Replicas = tuple[ConnectionLeases, ConnectionLeases]
ANN, BOB = Client("key:lab", "ann"), Client("key:lab", "bob")


@pytest.fixture
async def replicas(store: Redis, store_url: str) -> AsyncIterator[Replicas]:
    """Two replicas that know each other. A client may have two connections, a key three."""
    async with connect(store_url) as other:
        both = tuple(
            ConnectionLeases(client, max_per_client=2, max_per_key=3, replica=name)
            for client, name in ((store, "one"), (other, "two"))
        )
        for leases in (*both, *both):
            await leases.renew()
        yield both[0], both[1]


async def acquire(leases: ConnectionLeases, owner: Client, connection_id: str) -> str | None:
    """None, or the reason why there is no room."""
    try:
        await leases.acquire(owner, connection_id)
    except TooManyConnections as full:
        return str(full)
    return None


async def test_a_client_and_a_key_have_so_many_over_all_replicas(replicas: Replicas) -> None:
    one, two = replicas
    assert await acquire(one, ANN, "a1") is None
    assert await acquire(two, ANN, "a2") is None
    assert await acquire(one, ANN, "a3") == "At most 2 connections per client."
    assert await acquire(two, BOB, "b1") is None
    assert await acquire(two, BOB, "b2") == "At most 3 connections per key."


async def test_a_connection_that_left_leaves_room(replicas: Replicas) -> None:
    one, two = replicas
    for leases, name in ((one, "a1"), (two, "a2")):
        await leases.acquire(ANN, name)
    two.release(ANN, "a2")
    await two.renew()
    assert await acquire(one, ANN, "a3") is None


async def test_what_a_killed_replica_had_counts_for_nothing_soon(replicas: Replicas, store: Redis) -> None:
    one, two = replicas
    await two.acquire(ANN, "a1")
    await two.acquire(ANN, "a2")
    assert await acquire(one, ANN, "a3")
    await store.zadd("ms:replicas", {"two": 0})  # its last sign of life is long ago
    await one.renew()
    assert await acquire(one, ANN, "a3") is None
    assert all([0 < await store.ttl(key) <= 3600 for key in await store.keys("ms:seats:*")])


async def test_a_store_that_refuses_keeps_nobody_out_and_hears_of_them_later(
    replicas: Replicas, store: Redis
) -> None:
    one, two = replicas
    await two.acquire(ANN, "a1")
    async with without_memory(store):
        assert await acquire(one, ANN, "a2") is None
        two.release(ANN, "a1")
    await one.renew()
    await two.renew()
    assert await acquire(two, ANN, "a3") is None
    assert await acquire(two, ANN, "a4")


async def test_seats_that_the_store_forgot_are_told_again(replicas: Replicas, store: Redis) -> None:
    one, two = replicas
    await one.acquire(ANN, "a1")
    await one.acquire(ANN, "a2")
    await store.flushall()
    one._write_at = 0.0
    for leases in (*replicas, *replicas):
        await leases.renew()
    assert await acquire(two, ANN, "a3")


async def test_the_chore_tells_of_who_left_at_once(replicas: Replicas) -> None:
    one, two = replicas
    await one.acquire(ANN, "a1")
    await one.acquire(ANN, "a2")
    chore = asyncio.create_task(one.run())
    one.release(ANN, "a1")
    while await acquire(two, ANN, "a3"):
        pass
    chore.cancel()


async def test_who_goes_while_being_counted_leaves_nothing(replicas: Replicas, store: Redis) -> None:
    one, two = replicas
    await store.client_pause(100)
    coming = asyncio.create_task(acquire(one, ANN, "a1"))
    await asyncio.sleep(0)
    coming.cancel()
    await asyncio.wait([coming])
    await one.renew()
    assert [await acquire(two, ANN, name) for name in ("a2", "a3")] == [None, None]


async def test_who_left_is_told_again_where_the_store_did_not_hear(replicas: Replicas, store: Redis) -> None:
    one, two = replicas
    await one.acquire(ANN, "a1")
    await one.acquire(ANN, "a2")
    (kept,) = [key for key in await store.keys("ms:seats:*") if b":client:" in key]
    await store.rename(kept, "elsewhere")
    await store.set(kept, "no set")
    one.release(ANN, "a1")
    with pytest.raises(StoreDown):
        await one.renew()
    await store.rename("elsewhere", kept)
    await one.renew()
    assert await acquire(two, ANN, "a3") is None
