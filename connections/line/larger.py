"""The place of one connection's large message: few are read at once, on all connections together."""

from __future__ import annotations

from sessions.running.shares import Shares, Subject

LARGER_BYTES = 1024 * 1024
"""Bytes of a large message, where a door takes them: an image of 768 KiB in base64."""
LARGER_S = 15.0
"""How long one may take to come. A frame of this size keeps within its connection's budget for four seconds."""


class Larger:
    """Takes a place among the large bodies of requests while a large message comes, and until it was taken in."""

    def __init__(self, bodies: Shares, subject: Subject) -> None:
        self._bodies = bodies
        self._subject = subject
        self._places = 0

    def take(self) -> bool:
        """Take a place, and return whether there was one."""
        if not self._bodies.has_room_for(self._subject):
            return False
        self._bodies.take(self._subject)
        self._places += 1
        return True

    def give_back(self, places: int) -> None:
        """Give places back: their messages were taken in."""
        self._places -= places
        self._bodies.give_back(self._subject, places)

    def end(self) -> None:
        """Give all places back: the connection has ended."""
        self.give_back(self._places)
