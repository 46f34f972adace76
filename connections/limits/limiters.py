"""All that bounds what clients may take of this server, as its doors need it."""

from __future__ import annotations

from dataclasses import dataclass, field

from connections.http.refusals import Refusals
from connections.limits.meter import Meter
from connections.limits.seats import FreeSeats, Seats, WaitingRoom

PENDING = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiters:
    """`meter` None: messages and tokens have no limit."""

    meter: Meter | None = None
    seats: Seats = field(default_factory=FreeSeats)
    waiting_room: WaitingRoom = field(default_factory=lambda: WaitingRoom(places=PENDING))
    refusals: Refusals = field(default_factory=Refusals)
