"""Tells a stalled engine from a busy one. Pure: who beats and who listens is elsewhere."""

from __future__ import annotations

import msgspec


class HeartbeatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is ready and sends nothing for `misses` intervals in a row, pongs included, is stalled."""

    interval_s: float = 5.0
    misses: int = 12


class Heartbeat:
    """Counts intervals of silence.

    Intervals are counted, not seconds: where the gateway itself stood still, it misses one.
    """

    def __init__(self, misses: int) -> None:
        """Take how many silent intervals in a row are too many."""
        self._misses = misses
        self._silent = 0

    def heard(self) -> None:
        """Note a message of the process, whichever."""
        self._silent = 0

    def beat(self) -> bool:
        """Note the end of an interval. Returns whether the process may still be alive."""
        self._silent += 1
        return self._silent <= self._misses
