"""Lets messages in as far as limits allow. What is counted is shared by all replicas; where it can't be had, all are let in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from connections.http.refusals import Refusal, Refusals
from connections.limits.quotas import Gauge, Kind, Quotas, RateLimited, Reading, judged
from connections.wire.frames import LimitNear
from sessions.errors import StoreDown
from sessions.events import Done
from sessions.records import Client

PATIENCE_S = 0.25
BLIND_S = 1.0
"""How long nobody asks for counts after they could not be had."""

_log = structlog.get_logger("midstream.limits")


class Counts(Protocol):
    """Counts that all replicas share."""

    async def take(self, gauges: Sequence[Gauge]) -> tuple[bool, list[Reading]]:
        """Counts one message where every limit has room, else none; tells which, and all counts. Raises StoreDown."""
        ...

    def charge(self, gauges: Sequence[Gauge], tokens: int) -> None:
        """Counts tokens, as soon as the store takes them."""
        ...


class Meter:
    """The limits of messages and tokens, for every connection of this replica."""

    def __init__(self, quotas: Quotas, counts: Counts, refusals: Refusals) -> None:
        self._quotas = quotas
        self._counts = counts
        self._refusals = refusals
        self._blind_until = 0.0

    async def admit(self, client: Client) -> list[LimitNear]:
        """Counts a message; gives what its sender is told about limits that are near. Raises RateLimited."""
        gauges = self._quotas.gauges(client)
        now = asyncio.get_running_loop().time
        if not gauges or now() < self._blind_until:
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                admitted, readings = await self._counts.take(gauges)
        except (StoreDown, TimeoutError):
            self._blind_until = now() + BLIND_S
            _log.warning("limits can't be looked at: messages are let in uncounted")
            return []
        try:
            return judged(gauges, readings, admitted=admitted)
        except RateLimited:
            self._refusals.count(Refusal.RATE)
            raise

    def ended(self, done: Done, client: Client) -> None:
        """Counts the tokens of an ended turn: of its prompt, and generated ones."""
        gauges = [gauge for gauge in self._quotas.gauges(client) if gauge.kind is Kind.TOKENS]
        tokens = done.usage.prompt_tokens + done.usage.generated_tokens
        if gauges and tokens:
            self._counts.charge(gauges, tokens)
