"""The limiters and counters that a server's endpoints share.

PROTOCOL.md, "Bounds of a connection", lists each bound with its number and what happens beyond it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import msgspec
from starlette.types import Scope

from connections.authentication.api_keys import Identity
from connections.authentication.caller import group_of
from connections.http import (
    EndpointName,
    Exchange,
    RefusalCounters,
    RefusalReason,
    error_code_of,
    refusal_response,
)
from connections.loop_scheduler import FairLoopScheduler
from connections.protocol.base import Limits
from connections.protocol.errors import Close
from connections.protocol.frames import LimitNear
from sessions.errors import Overloaded, Refused
from sessions.limits.bounds import LARGE_BODIES, MAX_PENDING_CONNECTIONS, MESSAGES_PER_S, READS_PER_S, Bound
from sessions.limits.quotas import QuotaLimiter, RedisCounters
from sessions.limits.rates import FrameCost, LocalRateLimits, RateLimited
from sessions.limits.shares import AGAIN_MS, Address, FairShare, HandshakeLimit, Subject
from sessions.records import Client
from sessions.store.pool import Durations


@contextmanager
def slot(shares: FairShare, subject: Subject, why: str) -> Iterator[None]:
    """Hold one of a limited number of places. Raises Overloaded with the text `why` if there is none for the subject."""
    if not shares.has_capacity_for(subject):
        raise Overloaded(why, retry_after_ms=AGAIN_MS)
    shares.take(subject)
    try:
        yield
    finally:
        shares.give_back(subject)


class BoundCounters:
    """Counts how often connections reach a bound, and how the server closes them."""

    def __init__(self) -> None:
        self._met: Counter[Bound] = Counter()
        self._closed: Counter[str] = Counter()
        self.delays = Durations()
        """Times from the engine's step to the socket, of each delta sent."""
        self.gaps = 0
        """How many gaps readers were sent."""

    def count(self, bound: Bound) -> None:
        """Count a bound that was reached."""
        self._met[bound] += 1

    def closed(self, how: int | None) -> None:
        """Count a WebSocket that the server closed, by its close code; None: by a reset."""
        self._closed["reset" if how is None else str(how)] += 1

    def met(self) -> Mapping[Bound, int]:
        """Return the count of every bound, zeros included."""
        return {bound: self._met[bound] for bound in Bound}

    def closes(self) -> Mapping[str, int]:
        """Return how many connections the server ended, by close code or `reset`."""
        return dict(self._closed)


class EndpointCounters:
    """Counts the bounds and errors of one endpoint's connections."""

    __slots__ = ("_bounds", "_endpoint", "_refusals", "delayed")

    def __init__(self, endpoint: EndpointName, bounds: BoundCounters, refusals: RefusalCounters) -> None:
        self._endpoint = endpoint
        self._bounds = bounds
        self._refusals = refusals
        self.delayed = bounds.delays.observe
        """Counts the seconds between making and sending a delta."""

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        return self._endpoint

    def gap(self) -> None:
        """Count a gap that a reader was sent."""
        self._bounds.gaps += 1

    def met(self, bound: Bound) -> None:
        """Count a bound that a connection reached."""
        self._bounds.count(bound)

    def sent(self, code: str) -> None:
        """Count an error that a client was sent."""
        self._refusals.count_error(self._endpoint, code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiters:
    """`quota_limiter`: None without limits that all replicas count; `counts`: the counters of these limits, if any."""

    quota_limiter: QuotaLimiter | None = None
    counts: RedisCounters | None = None
    rates: LocalRateLimits = field(
        default_factory=lambda: LocalRateLimits(messages=MESSAGES_PER_S, reads=READS_PER_S)
    )
    handshake_limit: HandshakeLimit = field(
        default_factory=lambda: HandshakeLimit(slots=MAX_PENDING_CONNECTIONS)
    )
    scheduler: FairLoopScheduler = field(default_factory=FairLoopScheduler)
    bodies: FairShare = field(default_factory=lambda: FairShare(LARGE_BODIES))
    refusals: RefusalCounters = field(default_factory=RefusalCounters)
    bounds: BoundCounters = field(default_factory=BoundCounters)

    def limits_of(self, client: Client, limits: Limits) -> Limits:
        """Return a client's limits, for `ready`."""
        if self.quota_limiter is None:
            return limits
        return msgspec.structs.replace(limits, messages_per_minute=self.quota_limiter.shown(client))

    def tally(self, endpoint: EndpointName) -> EndpointCounters:
        """Return the counters of one endpoint."""
        return EndpointCounters(endpoint, self.bounds, self.refusals)

    def take(self, counts: FrameCost, subject: Subject, weight: int = 1) -> None:
        """Count a request on this replica, and its refusal. Raises RateLimited."""
        try:
            self.rates.take(counts, subject, weight)
        except RateLimited:
            self.refusals.count(RefusalReason.RATE)
            raise

    def take_read(self, subject: Subject) -> None:
        """Count a read, before the store is asked. Raises RateLimited."""
        self.take(FrameCost.READ, subject)

    def take_ticket(self, identity: Identity, scope: Scope) -> None:
        """Count a ticket as a read of its caller. Raises RateLimited."""
        self.take_read(Subject(identity.principal, group_of(identity, scope)))

    def rejects_handshake(self, address: Address | None) -> bool:
        """Return whether a connection from this address must be refused before authentication, and count the refusal."""
        if self.handshake_limit.is_full:
            self.refusals.count(RefusalReason.PENDING)
            return True
        if self.handshake_limit.is_full_for_address(address):
            self.bounds.count(Bound.ADDRESS_SHARE)
            return True
        return False

    def lease_body(self, subject: Subject, body_lease: ExitStack, others: str) -> None:
        """Take a place for a large body, which is freed when `body_lease` is closed. Raises Overloaded."""
        why = f"The server is busy with other {others}; try again in a moment."
        body_lease.enter_context(slot(self.bodies, subject, why))

    async def refuse(self, exchange: Exchange, endpoint: EndpointName, why: Refused | Close) -> None:
        """Count a refusal, and answer with it; an answer that has begun is cut off."""
        self.refusals.count_error(endpoint, error_code_of(why))
        if exchange.begun:
            exchange.cut_off()
        else:
            await exchange.answer(refusal_response(why))

    async def admit(self, client: Client) -> list[LimitNear]:
        """Count a message on all replicas; return the warnings about limits that are near. Raises RateLimited."""
        if self.quota_limiter is None:
            return []
        try:
            near = await self.quota_limiter.admit(client)
        except RateLimited:
            self.refusals.count(RefusalReason.RATE)
            raise
        return [LimitNear(name=one.name, remaining=one.remaining, reset_s=one.reset_s) for one in near]
