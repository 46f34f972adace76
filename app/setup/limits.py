"""The limits of the settings, and their background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio import Redis

from app.settings import Settings
from app.setup.config_reload import quotas_of
from connections.authentication.access import AccessControl
from connections.http.refusal_counters import RefusalCounters
from connections.limiters import BoundCounters, Limiters
from sessions.errors import StoreDown
from sessions.limits.quotas import ConnectionLeases, QuotaLimiter, QuotaSettings, RedisCounters
from sessions.limits.rates import LocalRateLimits
from sessions.limits.shares import HandshakeLimit

FLUSH_S = 1.0


@asynccontextmanager
async def limiters_of(
    settings: Settings, store: Redis, access: AccessControl, refusals: RefusalCounters, bounds: BoundCounters
) -> AsyncIterator[Limiters]:
    """Yield the limiters, which run while the context lasts. An unset limit costs no round trip."""
    quotas, counts = quotas_of(settings), RedisCounters(store)
    counts_any = (
        quotas != QuotaSettings() or settings.api_keys is not None or settings.limits_file is not None
    )
    leases = None
    if settings.redis_url is not None or settings.max_key_connections is not None:
        leases = ConnectionLeases(
            store,
            max_per_client=None if settings.redis_url is None else settings.max_client_connections,
            max_per_key=settings.max_key_connections,
        )
    async with _running(counts, leases):
        yield Limiters(
            quota_limiter=QuotaLimiter(quotas, counts, allowance_of=access.allowance_of)
            if counts_any
            else None,
            counts=counts,
            handshake_limit=HandshakeLimit(slots=settings.max_pending_connections),
            rates=LocalRateLimits(messages=settings.message_rate, reads=settings.read_rate),
            refusals=refusals,
            leases=leases,
            bounds=bounds,
        )


@asynccontextmanager
async def _running(counts: RedisCounters, leases: ConnectionLeases | None) -> AsyncIterator[None]:
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
