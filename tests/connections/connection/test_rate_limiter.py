"""Frames keep their order while a message waits to be counted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import cast

import pytest

from connections.authentication.caller import Caller
from connections.connection import MAX_WAITING, Connection, RateLimiter
from connections.http import RefusalCounters, RefusalReason
from connections.limiters import Limiters
from connections.protocol.audio import AudioStop
from connections.protocol.frames import Cancel, Frame, History, Ping, Request, Send
from sessions.errors import Overloaded
from sessions.limits.quotas import Quota, QuotaLimiter, QuotaSettings, QuotaUsage, RedisCounters
from sessions.limits.rates import LocalRateLimits, RateLimited
from sessions.records import Client, Owner


class Counts:
    """Counts that are told when `open`; every message has room while there is `room`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.room = True

    async def take(self, gauges: Sequence[Quota]) -> tuple[bool, list[QuotaUsage]]:
        await self.open.wait()
        return self.room, [QuotaUsage(gauge.limit, 1_000) for gauge in gauges]

    def charge(self, gauges: Sequence[Quota], tokens: int) -> None:
        raise AssertionError(f"{tokens} tokens are charged, and no turn has ended")


GENEROUS = LocalRateLimits(messages=99, reads=99)


class Harness:
    """A rate limiter before a handler that notes what comes to it, and a connection that notes what is pushed."""

    client = Client("anonymous", "ann")
    caller = Caller(Owner("anonymous", "ann"), client, "address:192.0.2.1")

    def __init__(self, rates: LocalRateLimits = GENEROUS) -> None:
        self.counts = Counts()
        self.refusals = RefusalCounters()
        self.handled: list[Request] = []
        self.pushed: list[Frame] = []
        self.under_way: list[asyncio.Task[None]] = []
        meter = QuotaLimiter(QuotaSettings(messages_per_minute=9), cast("RedisCounters", self.counts))
        self.limiters = Limiters(quota_limiter=meter, rates=rates, refusals=self.refusals)
        self._limiter = RateLimiter(self, self.limiters)

    def push(self, frame: Frame) -> None:
        self.pushed.append(frame)

    def handle(self, connection: Connection, frame: Request) -> Coroutine[None, None, None] | None:
        self.handled.append(frame)
        return asyncio.sleep(0) if isinstance(frame, Send) else None

    async def reads(self, frame: Request) -> None:
        """What a connection's reader does with a frame."""
        slow = self._limiter.handle(self, frame)  # type: ignore[arg-type]
        if slow is not None:
            self.under_way.append(asyncio.create_task(slow))
        await asyncio.sleep(0)


SEND, CANCEL, HISTORY = Send(client_msg_id="m", content="x"), Cancel(), History()
STOP = AudioStop()


@pytest.fixture
async def room(monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr("sessions.limits.quotas.TIMEOUT_S", 60.0)
    return Harness()


async def test_what_comes_behind_a_waiting_message_waits_too(room: Harness) -> None:
    for frame in (HISTORY, SEND, CANCEL, SEND, HISTORY, Ping()):
        await room.reads(frame)
    assert room.handled == [HISTORY, Ping()]
    room.counts.open.set()
    await asyncio.gather(*room.under_way)
    assert room.handled == [HISTORY, Ping(), SEND, CANCEL, SEND, HISTORY]
    await room.reads(CANCEL)
    assert room.handled[-1] == CANCEL  # nothing waits any more


async def test_a_message_without_room_is_not_handed_on(room: Harness) -> None:
    room.counts.open.set()
    room.counts.room = False
    await room.reads(SEND)
    with pytest.raises(RateLimited):
        await room.under_way[0]
    assert room.handled == []
    assert room.refusals.statistics()[RefusalReason.RATE] == 1


async def test_too_many_that_wait_are_refused_and_a_cancel_is_not(room: Harness) -> None:
    for _ in range(MAX_WAITING):
        await room.reads(SEND)
    for frame in (SEND, HISTORY):
        with pytest.raises(Overloaded):
            await room.reads(frame)
    await room.reads(CANCEL)
    await room.reads(STOP)
    room.counts.open.set()
    await asyncio.gather(*room.under_way)
    assert room.handled == [*[SEND] * MAX_WAITING, CANCEL, STOP]


async def test_a_client_that_asks_too_quickly_is_told_when_to_come_back(room: Harness) -> None:
    """Before anything is asked of the store; what must be heard in any case is heard."""
    hasty = Harness(LocalRateLimits(messages=0.2, reads=0.2))
    hasty.counts.open.set()
    for frame in (SEND, HISTORY):
        await hasty.reads(frame)
        with pytest.raises(RateLimited) as refused:
            await hasty.reads(frame)
        assert 0 < (refused.value.retry_after_ms or 0) <= 5000
    for frame in (CANCEL, Ping()):
        for _ in range(100):
            await hasty.reads(frame)
    assert hasty.refusals.statistics()[RefusalReason.RATE] == 2
