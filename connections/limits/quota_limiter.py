"""Admits messages within limits whose counts all replicas share.

If a sender's counts can't be read, its messages are admitted uncounted, and only its: in a cluster one server may be away, or
one count be unreadable, while all others work. Other failures of the store are reported by those who need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from connections.authentication.api_keys import NO_ALLOWANCE, Allowance
from connections.http.refusal_counters import Refusal, RefusalCounters
from connections.limits.quotas import (
    Quota,
    QuotaKind,
    QuotaSettings,
    QuotaUsage,
    RateLimited,
    quota_warnings,
    usage_quotas,
)
from connections.protocol.frames import LimitNear
from sessions.errors import StoreDown, StoreFault
from sessions.events import Done
from sessions.records import Client
from sessions.store.redis.pool import never_heavy, with_heaviness

TIMEOUT_S = 0.25
BACKOFF_S = 1.0
"""How long a sender's counts are not read after a failure; nobody's are read after `MAX_FAILING_CLIENTS` such senders."""
MAX_FAILING_CLIENTS = 16
"""Failures of senders without a success in between: then the whole store is taken to be away."""
MAX_BACKED_OFF_CLIENTS = 1024
"""Senders with remembered failures; beyond it all are forgotten and tried again."""

_log = structlog.get_logger("midstream.limits")


class QuotaCounters(Protocol):
    """Counts that all replicas share."""

    async def take(self, gauges: Sequence[Quota]) -> tuple[bool, list[QuotaUsage]]:
        """Count a message if every limit has room; return whether it was counted, and all counts. Raises StoreDown."""
        ...

    def charge(self, gauges: Sequence[Quota], tokens: int) -> None:
        """Count tokens, or replies, as soon as the store takes them."""
        ...


class QuotaLimiter:
    """The limits of messages and tokens, for every connection of this replica. `quotas` may change at any time."""

    def __init__(
        self,
        quotas: QuotaSettings,
        counts: QuotaCounters,
        refusals: RefusalCounters,
        *,
        allowance_of: Callable[[str], Allowance] = lambda _: NO_ALLOWANCE,
    ) -> None:
        """`allowance_of`: returns the limits of a principal's key."""
        self.quotas = quotas
        self._allowance_of = allowance_of
        self._counts = counts
        self._refusals = refusals
        self._backed_off: dict[Client, float] = {}  # until when
        self._failing: set[Client] = set()  # since the last answer
        self._all_backed_off_until = 0.0

    def shown(self, client: Client) -> int | None:
        """Return the messages per minute of a client."""
        return self.quotas.of(self._allowance_of(client.principal)).shown

    def limits(self, client: Client) -> bool:
        """Return whether a client's messages have to be counted."""
        return bool(self._gauges(client))

    def _gauges(self, client: Client) -> tuple[Quota, ...]:
        return self.quotas.gauges(client, self._allowance_of(client.principal))

    async def admit(self, client: Client) -> list[LimitNear]:
        """Count a message; return the warnings about limits that are near. Raises RateLimited."""
        gauges = self._gauges(client)
        now = asyncio.get_running_loop().time
        if not gauges or now() < max(self._all_backed_off_until, self._backed_off.get(client, 0.0)):
            return []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with with_heaviness(never_heavy):  # a wait behind others would lift the limits
                    admitted, usages = await self._counts.take(gauges)
        except StoreFault:  # logged there; this sender's counts are unreadable, while the store works
            return []
        except (StoreDown, TimeoutError):
            self._back_off(client, until=now() + BACKOFF_S)
            return []
        self._failing.clear()
        try:
            return quota_warnings(gauges, usages, admitted=admitted)
        except RateLimited:
            self._refusals.count(Refusal.RATE)
            raise

    def _back_off(self, client: Client, *, until: float) -> None:
        if len(self._backed_off) >= MAX_BACKED_OFF_CLIENTS:
            self._backed_off.clear()
        self._backed_off[client] = until
        self._failing.add(client)
        if len(self._failing) >= MAX_FAILING_CLIENTS:
            self._failing.clear()
            self._all_backed_off_until = until
        if len(self._failing) <= 1:  # the first, or all
            _log.warning("quota check failed, messages admitted uncounted")

    def ended(self, done: Done, client: Client) -> None:
        """Count the prompt and generated tokens of an ended turn, and for an API key the reply."""
        every = self._every(client)
        if replies := [quota for quota in every if quota.kind is QuotaKind.REPLIES]:
            self._counts.charge(replies, 1)
        self.used(client, done.usage.prompt_tokens + done.usage.generated_tokens)

    def used(self, client: Client, tokens: int) -> None:
        """Count tokens."""
        subjects = {quota.subject: quota for quota in self._every(client) if quota.kind is QuotaKind.TOKENS}
        if subjects and tokens:
            self._counts.charge(list(subjects.values()), tokens)

    def _every(self, client: Client) -> tuple[Quota, ...]:
        return (*self._gauges(client), *usage_quotas(client))
