"""Counts in a real store, shared by two replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from sessions.errors import StoreDown
from sessions.limits.quotas import Allowance, QuotaSettings, RedisCounters
from sessions.records import Client
from sessions.store.client import connect
from tests.chaos.proxy import FAIR, Weather, proxy
from tests.sessions.server_group import node
from tests.store_faults import without_memory

ANN, BOB = Client("key:lab", "ann"), Client("key:lab", "bob")
MINUTE_MS = 60_000


@pytest.fixture
async def replicas(store: Redis, store_url: str) -> AsyncIterator[tuple[RedisCounters, RedisCounters]]:
    async with connect(store_url) as other:
        yield RedisCounters(store), RedisCounters(other)


async def later(store: Redis, *, ms: int) -> None:
    """Makes the messages counted so far older by this time."""
    for key in await store.keys("ms:limit:messages:*"):
        for message in await store.zrange(key, 0, -1):
            await store.zincrby(key, -ms, message)


async def test_replicas_count_together_to_the_limit_and_no_further(
    replicas: tuple[RedisCounters, RedisCounters],
) -> None:
    gauges = QuotaSettings(messages_per_minute=10).gauges(ANN)
    taken = await asyncio.gather(*(replicas[number % 2].take(gauges) for number in range(30)))
    assert sum(admitted for admitted, _ in taken) == 10
    assert sorted(readings[0].used for _, readings in taken)[:10] == list(range(1, 11))


async def test_room_comes_back_message_by_message(
    replicas: tuple[RedisCounters, RedisCounters], store: Redis
) -> None:
    gauges = QuotaSettings(messages_per_minute=2).gauges(ANN)
    await replicas[0].take(gauges)
    await later(store, ms=40_000)
    await replicas[0].take(gauges)
    admitted, (reading,) = await replicas[1].take(gauges)
    assert not admitted
    assert 0 < reading.reset_ms <= MINUTE_MS - 40_000  # when the first one is a minute old
    await later(store, ms=reading.reset_ms)
    assert (await replicas[1].take(gauges))[0]
    assert not (await replicas[1].take(gauges))[0]


async def test_a_smaller_limit_holds_for_what_was_counted_before(
    replicas: tuple[RedisCounters, RedisCounters], store: Redis
) -> None:
    for _ in range(4):
        await replicas[0].take(QuotaSettings(messages_per_minute=9).gauges(ANN))
        await later(store, ms=10_000)
    admitted, (reading,) = await replicas[0].take(QuotaSettings(messages_per_minute=2).gauges(ANN))
    assert not admitted
    assert 30_000 < reading.reset_ms <= 40_000  # the third oldest of four has to expire, too


async def test_a_message_that_one_limit_refuses_counts_for_none(
    replicas: tuple[RedisCounters, RedisCounters],
) -> None:
    quotas = QuotaSettings(messages_per_minute=1, key_messages_per_minute=2)
    for _ in range(3):
        await replicas[0].take(quotas.gauges(ANN))
    admitted, readings = await replicas[0].take(quotas.gauges(BOB))
    assert admitted
    assert [reading.used for reading in readings] == [1, 2]


async def test_messages_of_a_day_are_counted_once_each_and_until_midnight(
    replicas: tuple[RedisCounters, RedisCounters], store: Redis
) -> None:
    gauges = QuotaSettings(messages_per_minute=9).gauges(ANN, Allowance(messages_per_day=2))
    for message in ("m1", "m1", "m2", "m2"):  # the client repeats what was not answered
        admitted, readings = await replicas[0].take(gauges, message=message)
        assert admitted
    assert [reading.used for reading in readings] == [2, 2, 2]
    assert not (await replicas[1].take(gauges, message="m3"))[0]
    (key,) = await store.keys("ms:limit:today:*")
    seconds, _ = await store.time()
    assert abs(await store.ttl(key) - (86_400 - seconds % 86_400)) <= 1


async def test_counts_of_messages_are_gone_a_minute_after_the_last(
    replicas: tuple[RedisCounters, RedisCounters], store: Redis
) -> None:
    await replicas[0].take(QuotaSettings(messages_per_minute=1).gauges(ANN))
    (key,) = await store.keys("ms:limit:*")
    assert 0 < await store.pttl(key) <= MINUTE_MS


async def test_tokens_count_until_midnight(
    replicas: tuple[RedisCounters, RedisCounters], store: Redis
) -> None:
    gauges = QuotaSettings(tokens_per_day=100, key_tokens_per_day=200).gauges(ANN)
    for tokens in (60, 50):
        replicas[0].charge(gauges, tokens)
    await replicas[0].settle()
    admitted, readings = await replicas[1].take(gauges)
    seconds, _ = await store.time()
    assert not admitted
    assert [reading.used for reading in readings] == [110, 110]
    for key in await store.keys("ms:limit:tokens:*"):
        assert abs(await store.ttl(key) - (86_400 - seconds % 86_400)) <= 1
    assert abs(readings[0].reset_ms / 1000 - (86_400 - seconds % 86_400)) <= 1


async def test_tokens_that_the_store_did_not_take_are_charged_when_it_is_back(
    replicas: tuple[RedisCounters, RedisCounters], store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.limits.quotas.RETRY_S", 0.01)
    gauges = QuotaSettings(tokens_per_day=100).gauges(ANN)
    await store.config_resetstat()
    async with without_memory(store):
        charging = asyncio.create_task(replicas[0].run())
        replicas[0].charge(gauges, 60)
        while "errorstat_OOM" not in await store.info("errorstats"):
            pass
    while (await replicas[1].take(gauges))[1][0].used < 60:
        pass
    charging.cancel()


async def test_a_message_that_is_asked_about_again_counts_once(
    replicas: tuple[RedisCounters, RedisCounters],
) -> None:
    """The client asks again if the store does not answer in time."""
    quotas = QuotaSettings(messages_per_minute=2, key_messages_per_minute=2, tokens_per_day=9)
    first = await replicas[0].take(quotas.gauges(ANN), message="one")
    again = await replicas[1].take(quotas.gauges(ANN), message="one")
    assert [(admitted, [reading.used for reading in readings]) for admitted, readings in (first, again)] == [
        (True, [1, 1, 0])
    ] * 2
    await replicas[0].take(quotas.gauges(ANN), message="two")
    full, late = [await replicas[0].take(quotas.gauges(ANN), message=number) for number in ("three", "two")]
    assert (full[0], late[0], [reading.used for reading in late[1]]) == (False, True, [2, 2, 0])


async def test_a_store_whose_answers_come_too_late_counts_a_charge_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes the command. The client has stopped waiting, and sends it again as it was; meanwhile more is to be counted."""
    gauges = QuotaSettings(tokens_per_day=900).gauges(ANN)
    monkeypatch.setattr("sessions.store.client.SOCKET_TIMEOUT_S", 0.2)
    async with (
        node(tmp_path / "one") as one,
        proxy(one.port) as way,
        connect(f"redis://127.0.0.1:{way.port}") as hasty,
    ):
        counts = RedisCounters(hasty)
        await counts.take(gauges)
        counts.charge(gauges, 40)
        await counts.settle()
        way.back = Weather(delay_s=1.0)
        counts.charge(gauges, 20)
        with pytest.raises(StoreDown):
            await counts.settle()
        way.back = FAIR
        counts.charge(gauges, 40)
        await counts.settle()
        assert (await counts.take(gauges))[1][0].used == 100
