"""The limits of the settings, and their background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio import Redis

from app.settings import Settings
from app.setup.config_reload import quotas_of
from connections.authentication.access import AccessControl
from connections.http import RefusalCounters
from connections.limits.bound_counters import BoundCounters
from connections.limits.leases import HandshakeLimit, RedisConnectionLeases, UnlimitedLeases
from connections.limits.limiters import Limiters
from connections.limits.quotas import QuotaLimiter, QuotaSettings, RedisCounters
from connections.limits.rates import LocalRateLimits
from sessions.errors import StoreDown
from sessions.events import Done
from sessions.observer import NullObserver
from sessions.records import Client

FLUSH_S = 1.0


class TokenUsageObserver(NullObserver):
    """Observes turns (`sessions.observer.Observer`) for the limits of tokens."""

    def __init__(self, quota_limiter: QuotaLimiter) -> None:
        self._meter = quota_limiter

    def ended(self, done: Done, client: Client) -> None:
        """Count the turn's tokens."""
        self._meter.ended(done, client)


@asynccontextmanager
async def limiters_of(
    settings: Settings, store: Redis, access: AccessControl, refusals: RefusalCounters, bounds: BoundCounters
) -> AsyncIterator[Limiters]:
    """Yield the limiters, which run while the context lasts. An unset limit costs no round trip."""
    quotas, counts = quotas_of(settings), RedisCounters(store)
    counts_any = (
        quotas != QuotaSettings() or settings.api_keys is not None or settings.limits_file is not None
    )
    leases = RedisConnectionLeases(
        store,
        max_per_client=None if settings.redis_url is None else settings.max_client_connections,
        max_per_key=settings.max_key_connections,
    )
    is_seated = settings.redis_url is not None or settings.max_key_connections is not None
    async with _running(counts, leases if is_seated else None):
        yield Limiters(
            quota_limiter=QuotaLimiter(quotas, counts, refusals, allowance_of=access.allowance_of)
            if counts_any
            else None,
            counts=counts,
            handshake_limit=HandshakeLimit(slots=settings.max_pending_connections),
            rates=LocalRateLimits(messages=settings.message_rate, reads=settings.read_rate),
            refusals=refusals,
            leases=leases if is_seated else UnlimitedLeases(),
            bounds=bounds,
        )


@asynccontextmanager
async def _running(counts: RedisCounters, leases: RedisConnectionLeases | None) -> AsyncIterator[None]:
    with suppress(StoreDown):
        if leases is not None:
            await leases.renew()
    async with asyncio.TaskGroup() as tasks:
        chores = [tasks.create_task(counts.run())]
        if leases is not None:
            chores.append(tasks.create_task(leases.run()))
        try:
            yield
        finally:
            for chore in chores:
                chore.cancel()
    with suppress(StoreDown, TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await counts.settle()
            if leases is not None:
                await leases.end()
