"""Admits messages within limits whose counts all replicas share.

If a sender's counts can't be read, its messages are admitted uncounted, and only its: in a cluster one server may be away, or
one count be unreadable, while all others work. Other failures of the store are reported by those who need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from connections.authentication.terms import NO_ALLOWANCE, Allowance
from connections.http.refusals import Refusal, Refusals
from connections.limits.quotas import Gauge, Kind, Quotas, RateLimited, Reading, judged, usage_gauges
from connections.wire.frames import LimitNear
from sessions.errors import StoreDown, StoreFault
from sessions.events import Done
from sessions.records import Client
from sessions.store.redis.asker import crowding, nobody

PATIENCE_S = 0.25
BLIND_S = 1.0
"""How long a sender's counts are not read after a failure; nobody's are read after `MOST_BLIND` such senders."""
MOST_BLIND = 16
"""Failures of senders without a success in between: then the whole store is taken to be away."""
MOST_NAMED = 1024
"""Senders with remembered failures; beyond it all are forgotten and tried again."""

_log = structlog.get_logger("midstream.limits")


class Counts(Protocol):
    """Counts that all replicas share."""

    async def take(self, gauges: Sequence[Gauge]) -> tuple[bool, list[Reading]]:
        """Count a message if every limit has room; return whether it was counted, and all counts. Raises StoreDown."""
        ...

    def charge(self, gauges: Sequence[Gauge], tokens: int) -> None:
        """Count tokens, or replies, as soon as the store takes them."""
        ...


class Meter:
    """The limits of messages and tokens, for every connection of this replica. `quotas` may change at any time."""

    def __init__(
        self,
        quotas: Quotas,
        counts: Counts,
        refusals: Refusals,
        *,
        allowance_of: Callable[[str], Allowance] = lambda _: NO_ALLOWANCE,
    ) -> None:
        """`allowance_of`: returns the limits of a principal's key."""
        self.quotas = quotas
        self._allowance_of = allowance_of
        self._counts = counts
        self._refusals = refusals
        self._blind: dict[Client, float] = {}  # until when
        self._failing: set[Client] = set()  # since the last answer
        self._blind_until = 0.0

    def shown(self, client: Client) -> int | None:
        """Return the messages per minute of a client."""
        return self.quotas.of(self._allowance_of(client.principal)).shown

    def limits(self, client: Client) -> bool:
        """Return whether a client's messages have to be counted."""
        return bool(self._gauges(client))

    def _gauges(self, client: Client) -> tuple[Gauge, ...]:
        return self.quotas.gauges(client, self._allowance_of(client.principal))

    async def admit(self, client: Client) -> list[LimitNear]:
        """Count a message; return the warnings about limits that are near. Raises RateLimited."""
        gauges = self._gauges(client)
        now = asyncio.get_running_loop().time
        if not gauges or now() < max(self._blind_until, self._blind.get(client, 0.0)):
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                with crowding(nobody):  # a wait behind others would lift the limits
                    admitted, readings = await self._counts.take(gauges)
        except StoreFault:  # logged there; this sender's counts are unreadable, while the store works
            return []
        except (StoreDown, TimeoutError):
            self._turn_blind(client, until=now() + BLIND_S)
            return []
        self._failing.clear()
        try:
            return judged(gauges, readings, admitted=admitted)
        except RateLimited:
            self._refusals.count(Refusal.RATE)
            raise

    def _turn_blind(self, client: Client, *, until: float) -> None:
        if len(self._blind) >= MOST_NAMED:
            self._blind.clear()
        self._blind[client] = until
        self._failing.add(client)
        if len(self._failing) >= MOST_BLIND:
            self._failing.clear()
            self._blind_until = until
        if len(self._failing) <= 1:  # the first, or all
            _log.warning("limits can't be read: messages are admitted uncounted")

    def ended(self, done: Done, client: Client) -> None:
        """Count the prompt and generated tokens of an ended turn, and for an API key the reply."""
        every = self._every(client)
        if replies := [gauge for gauge in every if gauge.kind is Kind.REPLIES]:
            self._counts.charge(replies, 1)
        self.used(client, done.usage.prompt_tokens + done.usage.generated_tokens)

    def used(self, client: Client, tokens: int) -> None:
        """Count tokens."""
        subjects = {gauge.subject: gauge for gauge in self._every(client) if gauge.kind is Kind.TOKENS}
        if subjects and tokens:
            self._counts.charge(list(subjects.values()), tokens)

    def _every(self, client: Client) -> tuple[Gauge, ...]:
        return (*self._gauges(client), *usage_gauges(client))
