"""Connections in a real store, counted over two replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from connections.limits.shared_seats import SharedSeats
from connections.wire.errors import Close
from sessions.errors import StoreDown
from sessions.records import Client
from sessions.store.redis.servers import connect
from tests.refusing_store import without_memory

ANN, BOB = Client("key:lab", "ann"), Client("key:lab", "bob")


@pytest.fixture
async def replicas(store: Redis, store_url: str) -> AsyncIterator[tuple[SharedSeats, SharedSeats]]:
    """Two replicas that know each other. A client may have two connections, a key three."""
    async with connect(store_url) as other:
        both = tuple(
            SharedSeats(client, max_per_client=2, max_per_key=3, replica=name)
            for client, name in ((store, "one"), (other, "two"))
        )
        for seats in (*both, *both):
            await seats.beat()
        yield both[0], both[1]


async def sits(seats: SharedSeats, owner: Client, connection_id: str) -> str | None:
    """None, or the reason why there is no room."""
    try:
        await seats.sit(owner, connection_id)
    except Close as close:
        return close.reason
    return None


async def test_a_client_and_a_key_have_so_many_over_all_replicas(
    replicas: tuple[SharedSeats, SharedSeats],
) -> None:
    one, two = replicas
    assert await sits(one, ANN, "a1") is None
    assert await sits(two, ANN, "a2") is None
    assert await sits(one, ANN, "a3") == "A client has at most 2 connections."
    assert await sits(two, BOB, "b1") is None
    assert await sits(two, BOB, "b2") == "A key has at most 3 connections."


async def test_a_connection_that_left_leaves_room(replicas: tuple[SharedSeats, SharedSeats]) -> None:
    one, two = replicas
    for seats, name in ((one, "a1"), (two, "a2")):
        await seats.sit(ANN, name)
    two.leave(ANN, "a2")
    await two.beat()
    assert await sits(one, ANN, "a3") is None


async def test_what_a_killed_replica_had_counts_for_nothing_soon(
    replicas: tuple[SharedSeats, SharedSeats], store: Redis
) -> None:
    one, two = replicas
    await two.sit(ANN, "a1")
    await two.sit(ANN, "a2")
    assert await sits(one, ANN, "a3")
    await store.zadd("ms:replicas", {"two": 0})  # its last sign of life is long ago
    await one.beat()
    assert await sits(one, ANN, "a3") is None
    assert all([0 < await store.ttl(key) <= 3600 for key in await store.keys("ms:seats:*")])


async def test_a_replica_that_ends_says_so(replicas: tuple[SharedSeats, SharedSeats]) -> None:
    one, two = replicas
    await two.sit(ANN, "a1")
    await two.sit(ANN, "a2")
    await two.end()
    await one.beat()
    assert await sits(one, ANN, "a3") is None


async def test_a_store_that_refuses_keeps_nobody_out_and_hears_of_them_later(
    replicas: tuple[SharedSeats, SharedSeats], store: Redis
) -> None:
    one, two = replicas
    await two.sit(ANN, "a1")
    async with without_memory(store):
        assert await sits(one, ANN, "a2") is None
        two.leave(ANN, "a1")
    await one.beat()
    await two.beat()
    assert await sits(two, ANN, "a3") is None
    assert await sits(two, ANN, "a4")


async def test_seats_that_the_store_forgot_are_told_again(
    replicas: tuple[SharedSeats, SharedSeats], store: Redis
) -> None:
    one, two = replicas
    await one.sit(ANN, "a1")
    await one.sit(ANN, "a2")
    await store.flushall()
    one._write_at = 0.0
    for seats in (*replicas, *replicas):
        await seats.beat()
    assert await sits(two, ANN, "a3")


async def test_the_chore_tells_of_who_left_at_once(replicas: tuple[SharedSeats, SharedSeats]) -> None:
    one, two = replicas
    await one.sit(ANN, "a1")
    await one.sit(ANN, "a2")
    chore = asyncio.create_task(one.run())
    one.leave(ANN, "a1")
    while await sits(two, ANN, "a3"):
        pass
    chore.cancel()


async def test_who_goes_while_being_counted_leaves_nothing(
    replicas: tuple[SharedSeats, SharedSeats], store: Redis
) -> None:
    one, two = replicas
    await store.client_pause(100)
    coming = asyncio.create_task(sits(one, ANN, "a1"))
    await asyncio.sleep(0)
    coming.cancel()
    await asyncio.wait([coming])
    await one.beat()
    assert [await sits(two, ANN, name) for name in ("a2", "a3")] == [None, None]


async def test_who_left_is_told_again_where_the_store_did_not_hear(
    replicas: tuple[SharedSeats, SharedSeats], store: Redis
) -> None:
    one, two = replicas
    await one.sit(ANN, "a1")
    await one.sit(ANN, "a2")
    (kept,) = [key for key in await store.keys("ms:seats:*") if b":client:" in key]
    await store.rename(kept, "elsewhere")
    await store.set(kept, "no set")
    one.leave(ANN, "a1")
    with pytest.raises(StoreDown):
        await one.beat()
    await store.rename("elsewhere", kept)
    await one.beat()
    assert await sits(two, ANN, "a3") is None
