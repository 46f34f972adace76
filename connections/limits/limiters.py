"""Bundles the limiters for the doors."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from starlette.types import Scope

from connections.authentication.identity import Identity
from connections.gate.client_address import Address
from connections.http.refusals import Door, Refusal, Refusals
from connections.limits.bounds import Bound, Bounds, Tally
from connections.limits.groups import group_of
from connections.limits.loop_turns import LoopTurns
from connections.limits.meter import Meter
from connections.limits.quotas import RateLimited
from connections.limits.rates import Rate, Rates
from connections.limits.seats import FreeSeats, Seats, WaitingRoom
from connections.limits.shared_counts import SharedCounts
from connections.wire.facts import Limits
from connections.wire.table import Counts
from sessions.records import Client
from sessions.shares import Shares, Subject

PENDING = 2000
LARGE_BODIES = 12
"""Long HTTP bodies that are read at once; each takes several times its length of memory."""
MESSAGES_PER_S = 10.0
READS_PER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiters:
    """`meter`: None without limits that all replicas count; `counts`: those counts, if any."""

    meter: Meter | None = None
    counts: SharedCounts | None = None
    rates: Rates = field(
        default_factory=lambda: Rates(messages=Rate(MESSAGES_PER_S), reads=Rate(READS_PER_S))
    )
    seats: Seats = field(default_factory=FreeSeats)
    waiting_room: WaitingRoom = field(default_factory=lambda: WaitingRoom(places=PENDING))
    turns: LoopTurns = field(default_factory=LoopTurns)
    bodies: Shares = field(default_factory=lambda: Shares(LARGE_BODIES))
    refusals: Refusals = field(default_factory=Refusals)
    bounds: Bounds = field(default_factory=Bounds)

    def limits_of(self, client: Client, limits: Limits) -> Limits:
        """Return a client's limits, for `ready`."""
        if self.meter is None:
            return limits
        return msgspec.structs.replace(limits, messages_per_minute=self.meter.shown(client))

    def tally(self, door: Door) -> Tally:
        """Return the tally of one door."""
        return Tally(door, self.bounds, self.refusals)

    def take_read(self, subject: Subject) -> None:
        """Count a read, before the store is asked. Raises RateLimited."""
        try:
            self.rates.take(Counts.READ, subject)
        except RateLimited:
            self.refusals.count(Refusal.RATE)
            raise

    def take_ticket(self, identity: Identity, scope: Scope) -> None:
        """Count a ticket as a read of its caller. Raises RateLimited."""
        self.take_read(Subject(identity.principal, group_of(identity, scope)))

    def no_place_for(self, address: Address | None) -> bool:
        """Return whether a connection of this address has to be refused before authentication; it is counted then."""
        if self.waiting_room.is_full:
            self.refusals.count(Refusal.PENDING)
            return True
        if self.waiting_room.is_full_for(address):
            self.bounds.count(Bound.ADDRESS_SHARE)
            return True
        return False
