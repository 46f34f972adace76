"""Bundles the limiters for the endpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from starlette.types import Scope

from connections.authentication.api_keys import Identity
from connections.http import EndpointName, RefusalCounters, RefusalReason
from connections.limits.bound_counters import Bound, BoundCounters, EndpointCounters
from connections.limits.leases import ConnectionLeases, HandshakeLimit, UnlimitedLeases
from connections.limits.loop_scheduler import FairLoopScheduler
from connections.limits.owner_groups import group_of
from connections.limits.quotas import QuotaLimiter, RateLimited, RedisCounters
from connections.limits.rates import LocalRateLimits
from connections.middleware import Address
from connections.protocol.base import Limits
from connections.protocol.frames import FrameCost
from sessions.fair_share import FairShare, Subject
from sessions.records import Client

PENDING = 2000
LARGE_BODIES = 12
"""Long HTTP bodies that are read at once; each takes several times its length of memory."""
MESSAGES_PER_S = 10.0
READS_PER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiters:
    """`quota_limiter`: None without limits that all replicas count; `counts`: those counts, if any."""

    quota_limiter: QuotaLimiter | None = None
    counts: RedisCounters | None = None
    rates: LocalRateLimits = field(
        default_factory=lambda: LocalRateLimits(messages=MESSAGES_PER_S, reads=READS_PER_S)
    )
    leases: ConnectionLeases = field(default_factory=UnlimitedLeases)
    handshake_limit: HandshakeLimit = field(default_factory=lambda: HandshakeLimit(slots=PENDING))
    turns: FairLoopScheduler = field(default_factory=FairLoopScheduler)
    bodies: FairShare = field(default_factory=lambda: FairShare(LARGE_BODIES))
    refusals: RefusalCounters = field(default_factory=RefusalCounters)
    bounds: BoundCounters = field(default_factory=BoundCounters)

    def limits_of(self, client: Client, limits: Limits) -> Limits:
        """Return a client's limits, for `ready`."""
        if self.quota_limiter is None:
            return limits
        return msgspec.structs.replace(limits, messages_per_minute=self.quota_limiter.shown(client))

    def tally(self, endpoint: EndpointName) -> EndpointCounters:
        """Return the tally of one endpoint."""
        return EndpointCounters(endpoint, self.bounds, self.refusals)

    def take_read(self, subject: Subject) -> None:
        """Count a read, before the store is asked. Raises RateLimited."""
        try:
            self.rates.take(FrameCost.READ, subject)
        except RateLimited:
            self.refusals.count(RefusalReason.RATE)
            raise

    def take_ticket(self, identity: Identity, scope: Scope) -> None:
        """Count a ticket as a read of its caller. Raises RateLimited."""
        self.take_read(Subject(identity.principal, group_of(identity, scope)))

    def rejects_handshake(self, address: Address | None) -> bool:
        """Return whether a connection of this address has to be refused before authentication; it is counted then."""
        if self.handshake_limit.is_full:
            self.refusals.count(RefusalReason.PENDING)
            return True
        if self.handshake_limit.is_full_for_address(address):
            self.bounds.count(Bound.ADDRESS_SHARE)
            return True
        return False
