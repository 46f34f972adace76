"""How many turns this replica may have at once, of whatever kind they are, for whom, and whether it takes any.

Decided before anything is asked of the store or the engine, so that what is shed costs next to nothing.
"""

from __future__ import annotations

from sessions.errors import Draining, Overloaded
from sessions.running.shares import Shares, Subject

COMING = 256
"""Messages that are on their way in at once: each asks the store some times, and the store's connections are few."""
AGAIN_MS = 1000

_BUSY = "The server is busy; try again in a moment."
_SHARE = "You have as many replies under way as the server can give you now; try again in a moment."


class Admitted:
    """One turn that was let in: on its way, then waiting behind another or running."""

    __slots__ = ("_coming", "_held", "_running", "_subject")

    def __init__(self, subject: Subject, *, coming: Shares, held: Shares, running: Shares) -> None:
        self._subject = subject
        self._coming: Shares | None = coming
        self._held: Shares | None = held
        self._running = running
        coming.take(subject)
        held.take(subject)

    def arrived(self) -> None:
        """It was accepted or refused: it asks the store no more."""
        if self._coming is not None:
            self._coming.give_back(self._subject)
            self._coming = None

    def begin(self) -> None:
        """It waits no longer. There is room for it: what was accepted is run."""
        if self._held is not None and self._held is not self._running:
            self._held.give_back(self._subject)
            self._held = self._running
            self._running.take(self._subject)

    def leave(self) -> None:
        """Counts it no longer."""
        self.arrived()
        if self._held is not None:
            self._held.give_back(self._subject)
            self._held = None


class Admission:
    """Counts turns: those that run apart from those that wait behind another of their conversation, `at_most` of each."""

    def __init__(self, *, at_most: int) -> None:
        self._coming = Shares(COMING)
        self._running = Shares(at_most)
        self._waiting = Shares(at_most)
        self.draining = False

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def waiting(self) -> int:
        """How many wait behind another turn of their conversation."""
        return len(self._waiting)

    def enter(self, subject: Subject, *, waits: bool = False) -> Admitted:
        """Counts a turn. Raises Draining, Overloaded."""
        if self.draining:
            raise Draining("The server is about to stop; send again after reconnecting.")
        held = self._waiting if waits else self._running
        if not self._coming.has_room_for(subject):
            raise Overloaded(_BUSY, retry_after_ms=AGAIN_MS)
        if not held.has_room_for(subject):
            raise Overloaded(_SHARE, retry_after_ms=AGAIN_MS)
        return Admitted(subject, coming=self._coming, held=held, running=self._running)
