"""All that bounds what clients may take of this server, as its doors need it."""

from __future__ import annotations

from dataclasses import dataclass, field

from connections.http.refusals import Refusals
from connections.limits.meter import Meter
from connections.limits.rates import Rate, Rates
from connections.limits.seats import FreeSeats, Seats, WaitingRoom
from sessions.running.shares import Shares

PENDING = 2000
LARGE_BODIES = 12
"""Long HTTP bodies that are read at once, each of which takes some times its length of memory."""
MESSAGES_PER_S = 10.0
READS_PER_S = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiters:
    """`meter` None: what all replicas count together has no limit."""

    meter: Meter | None = None
    rates: Rates = field(
        default_factory=lambda: Rates(messages=Rate(MESSAGES_PER_S), reads=Rate(READS_PER_S))
    )
    seats: Seats = field(default_factory=FreeSeats)
    waiting_room: WaitingRoom = field(default_factory=lambda: WaitingRoom(places=PENDING))
    bodies: Shares = field(default_factory=lambda: Shares(LARGE_BODIES))
    refusals: Refusals = field(default_factory=Refusals)
