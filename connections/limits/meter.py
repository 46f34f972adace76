"""Lets messages in as far as limits allow. What is counted is shared by all replicas.

Where a sender's counts can't be had, its messages are let in uncounted, and nobody else's: in a cluster one server may be away,
or one count be spoiled, while all others are well. What the store must do for a message anyhow is told by those who need it.
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

PATIENCE_S = 0.25
BLIND_S = 1.0
"""How long nobody asks for a sender's counts after they could not be had; none of anybody's after `MOST_BLIND` such senders."""
MOST_BLIND = 16
"""Senders whose counts could not be had, with no answer between: the store as a whole is away then."""
MOST_NAMED = 1024
"""Senders of whom that is remembered; beyond it all are forgotten, and asked for once more."""

_log = structlog.get_logger("midstream.limits")


class Counts(Protocol):
    """Counts that all replicas share."""

    async def take(self, gauges: Sequence[Gauge]) -> tuple[bool, list[Reading]]:
        """Counts one message where every limit has room, else none; tells which, and all counts. Raises StoreDown."""
        ...

    def charge(self, gauges: Sequence[Gauge], tokens: int) -> None:
        """Counts tokens, or replies, as soon as the store takes them."""
        ...


class Meter:
    """The limits of messages and tokens, for every connection of this replica. `quotas`: may change at any moment."""

    def __init__(
        self,
        quotas: Quotas,
        counts: Counts,
        refusals: Refusals,
        *,
        allowance_of: Callable[[str], Allowance] = lambda _: NO_ALLOWANCE,
    ) -> None:
        """`allowance_of`: what a principal's key may have by its own terms."""
        self.quotas = quotas
        self._allowance_of = allowance_of
        self._counts = counts
        self._refusals = refusals
        self._blind: dict[Client, float] = {}  # until when
        self._failing: set[Client] = set()  # since the last answer
        self._blind_until = 0.0

    def shown(self, client: Client) -> int | None:
        """The messages per minute that a client has at most."""
        return self.quotas.of(self._allowance_of(client.principal)).shown

    def limits(self, client: Client) -> bool:
        """Whether a client's messages have to be counted."""
        return bool(self._gauges(client))

    def _gauges(self, client: Client) -> tuple[Gauge, ...]:
        return self.quotas.gauges(client, self._allowance_of(client.principal))

    async def admit(self, client: Client) -> list[LimitNear]:
        """Counts a message; gives what its sender is told about limits that are near. Raises RateLimited."""
        gauges = self._gauges(client)
        now = asyncio.get_running_loop().time
        if not gauges or now() < max(self._blind_until, self._blind.get(client, 0.0)):
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                admitted, readings = await self._counts.take(gauges)
        except StoreFault:  # told there; this sender's counts are spoiled, and the store is well
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
            _log.warning("limits can't be looked at: messages are let in uncounted")

    def ended(self, done: Done, client: Client) -> None:
        """Counts the tokens of an ended turn, of its prompt and generated ones; of an API key also the reply."""
        every = self._every(client)
        if replies := [gauge for gauge in every if gauge.kind is Kind.REPLIES]:
            self._counts.charge(replies, 1)
        self.used(client, done.usage.prompt_tokens + done.usage.generated_tokens)

    def used(self, client: Client, tokens: int) -> None:
        """Counts tokens."""
        subjects = {gauge.subject: gauge for gauge in self._every(client) if gauge.kind is Kind.TOKENS}
        if subjects and tokens:
            self._counts.charge(list(subjects.values()), tokens)

    def _every(self, client: Client) -> tuple[Gauge, ...]:
        return (*self._gauges(client), *usage_gauges(client))
