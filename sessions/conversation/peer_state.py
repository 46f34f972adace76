"""What a replica knows of others that have the same conversation open, and what it waits for from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sessions.events import Done
from sessions.turn.turn import Turn


class PeerState:
    """The other replicas of one conversation. What is known of them may be outdated; the store knows better."""

    __slots__ = ("_cancels", "announced_seq", "entering", "news", "sent", "watched", "watching")

    def __init__(self) -> None:
        self.announced_seq = 0  # the newest event that one of them announced
        self.watching = False  # the store sends this replica their events: connections are attached here
        self.watched = False  # they have connections attached
        self.news = 0  # how often the store reported that without being asked
        self.entering = (
            asyncio.Lock()
        )  # held while this replica enters or leaves the store's list of watchers
        self.sent: dict[str, Turn] = {}  # messages that one of them is accepting, by client_msg_id
        self._cancels: list[Callable[[Done], None]] = []

    def note_announced(self, seq: int) -> None:
        """Note an event that one of them announced."""
        self.announced_seq = max(self.announced_seq, seq)

    def note_watched(self, *, watched: bool) -> None:
        """Note the store's report whether they have connections attached."""
        self.watched = watched
        self.news += 1

    def entered(self, *, watched: bool, watching: bool, news: int) -> None:
        """Note the store's answer to a write, made when `news` reports had arrived.

        Reports that arrived since then count as newer than the answer.
        """
        self.watched = watched or (self.news != news and self.watched)
        self.watching = self.watching or watching

    @contextmanager
    def cancelling(self, ends: Callable[[Done], None]) -> Iterator[None]:
        """While one of them is asked to cancel, pass ends that arrive to `ends`, before anybody else gets them."""
        self._cancels.append(ends)
        try:
            yield
        finally:
            self._cancels.remove(ends)

    def note_turn_end(self, done: Done) -> None:
        """Note that a turn has ended, on any replica."""
        for ends in [*self._cancels]:
            ends(done)

    def forget(self) -> None:
        """Note that the conversation was deleted, with all that the store had of it."""
        self.announced_seq = 0
        self.watching = self.watched = False
