"""The place of one connection's large message: few are read at once, on all connections together."""

from __future__ import annotations

from sessions.limits.bounds import MAX_FRAME_BYTES
from sessions.limits.shares import FairShare, Subject


class LargeMessageLease:
    """Takes a place among the large bodies of requests while a large message comes, and until it was taken in."""

    def __init__(self, bodies: FairShare, subject: Subject) -> None:
        self._bodies = bodies
        self._subject = subject
        self._slots = self._whole = self._taken = 0
        self.is_receiving = False
        """Whether the message that comes is a large one."""

    def admit(self, size: int) -> bool:
        """Return whether a message may have so many bytes. One that begins to be large takes a place."""
        if size <= MAX_FRAME_BYTES or self.is_receiving:
            return True
        if not self._bodies.has_capacity_for(self._subject):
            return False
        self._bodies.take(self._subject)
        self._slots += 1
        self.is_receiving = True
        return True

    def message_ended(self, size: int) -> None:
        """Note the end of a message. One that took a place by its frames' heads, or by a ping in it, gives it back."""
        if self.is_receiving and size > MAX_FRAME_BYTES:
            self._whole += 1
        elif self.is_receiving:
            self._give_back(1)
        self.is_receiving = False

    def mark_delivered(self) -> bool:
        """Note that the application has all whole messages; return whether large ones are among them."""
        self._taken, self._whole = self._whole, 0
        return self._taken > 0

    def release_consumed(self) -> bool:
        """Give back the places of what the application had, and has taken in; return whether there were any."""
        taken, self._taken = self._taken, 0
        if taken:
            self._give_back(taken)
        return taken > 0

    def end(self) -> None:
        """Give all places back: the connection has ended."""
        self._whole = self._taken = 0
        self._give_back(self._slots)

    def _give_back(self, slots: int) -> None:
        self._slots -= slots
        self._bodies.give_back(self._subject, slots)
