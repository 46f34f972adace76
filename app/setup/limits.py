"""The limits of the settings, and their background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from redis.asyncio import Redis

from app.settings import Settings
from app.setup.limits_file import quotas_of
from connections.authentication.access import AccessControl
from connections.http.refusals import Refusals
from connections.limits.bounds import Bounds
from connections.limits.limiters import Limiters
from connections.limits.meter import Meter
from connections.limits.quotas import Quotas
from connections.limits.rates import Rate, Rates
from connections.limits.seats import FreeSeats, WaitingRoom
from connections.limits.shared_counts import SharedCounts
from connections.limits.shared_seats import SharedSeats
from sessions.errors import StoreDown
from sessions.events import Done
from sessions.observer import Silent
from sessions.records import Client

LAST_WORDS_S = 1.0


class TurnTokens(Silent):
    """Observes turns (`sessions.observer.Observer`) for the limits of tokens."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def ended(self, done: Done, client: Client) -> None:
        """Count the turn's tokens."""
        self._meter.ended(done, client)


@asynccontextmanager
async def limiters_of(
    settings: Settings, store: Redis, access: AccessControl, refusals: Refusals, bounds: Bounds
) -> AsyncIterator[Limiters]:
    """Yield the limiters, which run while the context lasts. An unset limit costs no round trip."""
    quotas, counts = quotas_of(settings), SharedCounts(store)
    counts_any = quotas != Quotas() or settings.api_keys is not None or settings.limits_file is not None
    seats = SharedSeats(
        store,
        max_per_client=None if settings.redis_url is None else settings.max_client_connections,
        max_per_key=settings.max_key_connections,
    )
    is_seated = settings.redis_url is not None or settings.max_key_connections is not None
    async with _running(counts, seats if is_seated else None):
        yield Limiters(
            meter=Meter(quotas, counts, refusals, allowance_of=access.allowance_of) if counts_any else None,
            counts=counts,
            waiting_room=WaitingRoom(places=settings.max_pending_connections),
            rates=Rates(messages=Rate(settings.message_rate), reads=Rate(settings.read_rate)),
            refusals=refusals,
            seats=seats if is_seated else FreeSeats(),
            bounds=bounds,
        )


@asynccontextmanager
async def _running(counts: SharedCounts, seats: SharedSeats | None) -> AsyncIterator[None]:
    with suppress(StoreDown):
        if seats is not None:
            await seats.beat()
    async with asyncio.TaskGroup() as tasks:
        chores = [tasks.create_task(counts.run())]
        if seats is not None:
            chores.append(tasks.create_task(seats.run()))
        try:
            yield
        finally:
            for chore in chores:
                chore.cancel()
    with suppress(StoreDown, TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await counts.settle()
            if seats is not None:
                await seats.end()
