"""Counts how often connections reached a bound, and how they ended, for metrics.

PROTOCOL.md, "Bounds of a connection", lists each bound with its number and what happens beyond it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from connections.http import EndpointName, RefusalCounters
from sessions.observer import Durations


class Bound(StrEnum):
    """The bounds of one connection, and of peers before their authentication."""

    TEXT_FRAMES = "text_frames"
    TEXT_BYTES = "text_bytes"
    BINARY_FRAMES = "binary_frames"
    BINARY_BYTES = "binary_bytes"
    CONTROL_FRAMES = "control_frames"
    FRAGMENTS = "fragments"
    HELLO_FRAMES = "hello_frames"
    HELLO_TIME = "hello_time"
    ADDRESS_SHARE = "address_share"
    UNREAD = "unread"
    OUTBOX = "outbox"
    BAD_FRAMES = "bad_frames"
    HEARTBEAT = "heartbeat"
    PIPELINED = "pipelined"
    REQUEST_HEAD = "request_head"
    REQUEST_TIME = "request_time"
    SOCKETS = "sockets"


class BoundCounters:
    """Counters."""

    def __init__(self) -> None:
        self._met: Counter[Bound] = Counter()
        self._closed: Counter[str] = Counter()
        self.delays = Durations()
        """Times from the engine's step to the socket, of each delta sent."""
        self.gaps = 0
        """How often a reader was told of a gap."""

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
        """Count the time between making and sending a delta."""

    @property
    def endpoint(self) -> str:
        """The endpoint's name."""
        return self._endpoint

    def gap(self) -> None:
        """Count a reader that was told of a gap."""
        self._bounds.gaps += 1

    def met(self, bound: Bound) -> None:
        """Count a bound that a connection reached."""
        self._bounds.count(bound)

    def sent(self, code: str) -> None:
        """Count an error that a client was sent."""
        self._refusals.count_error(self._endpoint, code)
