"""A sender whose counts can't be had is let in uncounted; all others are counted on. Over a real store."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from sessions.limits import quotas as metering
from sessions.limits.quotas import (
    MAX_BACKED_OFF_CLIENTS,
    MAX_FAILING_CLIENTS,
    QuotaLimiter,
    QuotaSettings,
    RedisCounters,
)
from sessions.limits.rates import RateLimited
from sessions.records import Client
from tests.app.test_limits_in_a_cluster import ANN, BOB
from tests.store_faults import pid_of, stalled

QUOTAS = QuotaSettings(messages_per_minute=1)


@pytest.fixture
async def meter(store: Redis) -> QuotaLimiter:
    return QuotaLimiter(QUOTAS, RedisCounters(store))


async def test_spoiled_counts_of_one_sender_leave_all_others_counted(
    meter: QuotaLimiter, store: Redis
) -> None:
    await meter.admit(ANN)
    (key,) = await store.keys("ms:limit:messages:*")
    await store.set(key, "no set")
    for _ in range(MAX_FAILING_CLIENTS + 1):
        await meter.admit(ANN)
    await meter.admit(BOB)
    with pytest.raises(RateLimited):
        await meter.admit(BOB)
    await store.delete(key)
    await meter.admit(ANN)
    with pytest.raises(RateLimited):
        await meter.admit(ANN)


async def test_counts_that_come_too_late_once_leave_all_others_counted(
    meter: QuotaLimiter, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "BACKOFF_S", 3600.0)
    await meter.admit(BOB)
    with monkeypatch.context() as hasty, stalled(await pid_of(store)):
        hasty.setattr(metering, "TIMEOUT_S", 0.05)
        await meter.admit(ANN)
    await meter.admit(ANN)  # for a moment nobody asks for hers
    with pytest.raises(RateLimited):
        await meter.admit(BOB)


async def test_a_store_that_is_away_for_many_is_not_asked_for_a_moment(
    meter: QuotaLimiter, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "BACKOFF_S", 3600.0)
    await meter.admit(BOB)
    with monkeypatch.context() as hasty, stalled(await pid_of(store)):
        hasty.setattr(metering, "TIMEOUT_S", 0.01)
        for number in range(MAX_FAILING_CLIENTS):
            await meter.admit(Client("key:lab", f"client-{number}"))
    await meter.admit(BOB)
    meter._all_backed_off_until = 0.0
    with pytest.raises(RateLimited):
        await meter.admit(BOB)


async def test_so_many_senders_are_remembered_at_most(meter: QuotaLimiter) -> None:
    for number in range(2 * MAX_BACKED_OFF_CLIENTS + 1):
        meter._back_off(Client("key:lab", f"client-{number}"), until=1.0)
    assert len(meter._backed_off) <= MAX_BACKED_OFF_CLIENTS
    assert len(meter._failing) < MAX_FAILING_CLIENTS
