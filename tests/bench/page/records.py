"""Observations of visits to the page, and the report that is made of them."""

from __future__ import annotations

import msgspec

from tests.bench.engine.report import Failure, Measured
from tests.bench.machine import Machine


class NetworkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The network between browser and service: Chromium slows down its own to this."""

    down_kbit: float
    up_kbit: float
    round_trip_ms: float


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One load of the page. Times start when the browser sets out; bytes are those on the line."""

    usable_ms: float
    """Time until it is connected, and a message can be sent."""
    paint_ms: float
    shown_ms: float | None
    """Time until the first reply of the history is shown; None if there is no history."""
    requests: int
    """Bytes over the line, including the WebSocket's handshake."""
    in_a_row: int
    """Round trips that had to wait for each other until the page was usable."""
    wire_bytes: dict[str, float]
    """Bytes by kind; `later` were loaded once the page was usable."""
    nodes: int
    heap_mb: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """A visitor's first visit, and a reload of the conversation that they began."""

    first: Visit
    reload: Visit


class PageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day."""

    date: str
    command: str
    machine: Machine
    line: NetworkProfile
    findings: tuple[Measured, ...]
    rounds: tuple[Round, ...]
    failures: tuple[Failure, ...] = ()
    cuts: tuple[str, ...] = ()


def encode(report: PageReport) -> bytes:
    """Return a report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
