"""In a cluster each client and each key is counted in its own slot, and all limits hold or none counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis

from sessions.limits.quotas import QuotaSettings, RedisCounters, near_limits
from sessions.limits.rates import RateLimited
from sessions.records import Client
from sessions.store.client import connect
from tests.sessions.server_group import cluster

ANN, BOB = Client("key:lab", "ann"), Client("key:lab", "bob")


async def test_in_a_cluster_all_limits_of_a_client_and_its_key_hold_or_none_counts(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path / "cluster") as nodes,
        connect(f"redis+cluster://127.0.0.1:{nodes[0].port}") as store,
    ):
        await messages_and_tokens(RedisCounters(store))
        await clients_of_one_key(store)


async def messages_and_tokens(counts: RedisCounters) -> None:
    alone = QuotaSettings(messages_per_minute=1, tokens_per_day=100).gauges(Client("key:alone", "ann"))
    assert [(await counts.take(alone))[0] for _ in range(2)] == [True, False]
    quotas = QuotaSettings(messages_per_minute=5, key_messages_per_minute=2)
    for _ in range(2):
        assert (await counts.take(quotas.gauges(ANN)))[0]
    admitted, readings = await counts.take(quotas.gauges(BOB))
    assert not admitted
    with pytest.raises(RateLimited, match="key_messages_per_minute"):
        near_limits(quotas.gauges(BOB), readings, admitted=admitted)
    assert (await counts.take(QuotaSettings(messages_per_minute=5).gauges(BOB)))[1][0].used == 1


async def clients_of_one_key(store: Redis) -> None:
    """The commonest case, a page with one key and many people: they are counted all over the cluster."""
    counts = RedisCounters(store)
    for number in range(30):
        client = Client("key:page", f"client-{number}")
        await counts.take(QuotaSettings(messages_per_minute=5, tokens_per_day=100).gauges(client))
    slots = {store.keyslot(key) async for key in store.scan_iter(match="ms:limit:*")}  # type: ignore[attr-defined]
    assert len(slots) > 25
