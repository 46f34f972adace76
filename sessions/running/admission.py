"""How many turns this replica may have at once, of whatever kind they are, and whether it takes any."""

from __future__ import annotations

from sessions.errors import Draining, Overloaded


class Admission:
    """Counts turns, running or waiting. Every `enter` that does not raise is followed by one `leave`."""

    def __init__(self, *, at_most: int) -> None:
        self._at_most = at_most
        self._count = 0
        self.draining = False

    def __len__(self) -> int:
        return self._count

    def enter(self) -> None:
        """Counts a turn. Raises Draining, Overloaded."""
        if self.draining:
            raise Draining("The server is about to stop; send again after reconnecting.")
        if self._count >= self._at_most:
            raise Overloaded("The server has as many turns as it can take; try again in a moment.")
        self._count += 1

    def leave(self) -> None:
        """Counts it no longer."""
        self._count -= 1
