"""In a cluster each client and each key is counted in its own slot, and all limits hold or none counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from sessions.limits.quotas import (
    ConnectionLeases,
    QuotaSettings,
    RedisCounters,
    TooManyConnections,
    near_limits,
)
from sessions.limits.rates import RateLimited
from sessions.records import Client
from sessions.store.client import connect
from tests.sessions.server_group import cluster

ANN, BOB = Client("key:lab", "ann"), Client("key:lab", "bob")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Redis]:
    async with (
        cluster(tmp_path / "cluster") as nodes,
        connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as client,
    ):
        yield client


async def test_messages_tokens_and_connections_are_counted_there(store: Redis) -> None:
    counts = RedisCounters(store)
    gauges = QuotaSettings(messages_per_minute=1, tokens_per_day=100).gauges(ANN)
    assert [(await counts.take(gauges))[0] for _ in range(2)] == [True, False]
    leases = ConnectionLeases(store, max_per_client=1, max_per_key=3)
    await leases.renew()
    await leases.acquire(ANN, "a1")
    with pytest.raises(TooManyConnections):
        await leases.acquire(ANN, "a2")
    leases.release(ANN, "a1")
    await leases.renew()
    await leases.acquire(ANN, "a2")
    await leases.end()


async def test_what_a_key_has_no_room_for_counts_for_none_of_its_clients(store: Redis) -> None:
    counts = RedisCounters(store)
    quotas = QuotaSettings(messages_per_minute=5, key_messages_per_minute=2)
    for _ in range(2):
        assert (await counts.take(quotas.gauges(ANN)))[0]
    admitted, readings = await counts.take(quotas.gauges(BOB))
    assert not admitted
    with pytest.raises(RateLimited, match="key_messages_per_minute"):
        near_limits(quotas.gauges(BOB), readings, admitted=admitted)
    assert (await counts.take(QuotaSettings(messages_per_minute=5).gauges(BOB)))[1][0].used == 1


async def test_a_connection_that_its_key_has_no_room_for_counts_for_none(store: Redis) -> None:
    leases = ConnectionLeases(store, max_per_client=2, max_per_key=2)
    await leases.renew()
    await leases.acquire(ANN, "a1")
    await leases.acquire(BOB, "b1")
    with pytest.raises(TooManyConnections, match="key"):
        await leases.acquire(BOB, "b2")
    leases.release(ANN, "a1")
    await leases.renew()
    await leases.acquire(BOB, "b3")


async def test_clients_of_one_key_are_counted_all_over_the_cluster(store: Redis) -> None:
    """The commonest case: a page with one key and many people."""
    counts, leases = RedisCounters(store), ConnectionLeases(store, max_per_client=2, max_per_key=None)
    for number in range(30):
        client = Client("key:lab", f"client-{number}")
        await counts.take(QuotaSettings(messages_per_minute=5, tokens_per_day=100).gauges(client))
        await leases.acquire(client, "a")
    for kind in ("ms:limit:*", "ms:seats:*"):
        slots = {store.keyslot(key) async for key in store.scan_iter(match=kind)}  # type: ignore[attr-defined]
        assert len(slots) > 25
