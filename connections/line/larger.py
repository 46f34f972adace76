"""The place of one connection's large message: few are read at once, on all connections together."""

from __future__ import annotations

from connections.limits.limits import MAX_FRAME_BYTES
from sessions.shares import Shares, Subject

LARGER_BYTES = 1024 * 1024
"""Bytes of a large message, where a door takes them: an image of some 768 KiB in base64."""
LARGER_S = 15.0
"""How long one may take to come. A frame of this size keeps within its connection's budget for four seconds."""


class Larger:
    """Takes a place among the large bodies of requests while a large message comes, and until it was taken in."""

    def __init__(self, bodies: Shares, subject: Subject) -> None:
        self._bodies = bodies
        self._subject = subject
        self._places = self._whole = self._taken = 0
        self.is_coming = False
        """Whether the message that comes is a large one."""

    def may_come(self, size: int) -> bool:
        """Return whether a message may have so many bytes. One that begins to be large takes a place."""
        if size <= MAX_FRAME_BYTES or self.is_coming:
            return True
        if not self._bodies.has_room_for(self._subject):
            return False
        self._bodies.take(self._subject)
        self._places += 1
        self.is_coming = True
        return True

    def has_come(self, size: int) -> None:
        """Note the end of a message. One that took a place by its frames' heads, or by a ping in it, gives it back."""
        if self.is_coming and size > MAX_FRAME_BYTES:
            self._whole += 1
        elif self.is_coming:
            self._give_back(1)
        self.is_coming = False

    def hand_on(self) -> bool:
        """Note that the application has all whole messages; return whether large ones are among them."""
        self._taken, self._whole = self._whole, 0
        return self._taken > 0

    def take_in(self) -> bool:
        """Give back the places of what the application had, and has taken in; return whether there were any."""
        taken, self._taken = self._taken, 0
        if taken:
            self._give_back(taken)
        return taken > 0

    def end(self) -> None:
        """Give all places back: the connection has ended."""
        self._whole = self._taken = 0
        self._give_back(self._places)

    def _give_back(self, places: int) -> None:
        self._places -= places
        self._bodies.give_back(self._subject, places)
