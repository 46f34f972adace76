"""What a replica knows of the others that have the same conversation open, and what it waits for from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sessions.events import Done
from sessions.turn.live_turn import LiveTurn


class OtherReplicas:
    """The others of one conversation. What is known of them may be late; the store knows better."""

    __slots__ = ("_cancels", "entering", "heard_seq", "news", "sent", "watched", "watching")

    def __init__(self) -> None:
        self.heard_seq = 0  # the newest event that one of them told of
        self.watching = (
            False  # the store has this replica told of their events: connections are attached here
        )
        self.watched = False  # they have connections attached
        self.news = 0  # how often the store told by itself whether they have
        self.entering = asyncio.Lock()  # entries to the store's list of watchers, and leaves
        self.sent: dict[str, LiveTurn] = {}  # messages that one of them takes in, by client_msg_id
        self._cancels: list[Callable[[Done], None]] = []

    def hear(self, seq: int) -> None:
        """One of them told of an event."""
        self.heard_seq = max(self.heard_seq, seq)

    def tell(self, *, watched: bool) -> None:
        """The store tells by itself whether they have connections attached."""
        self.watched = watched
        self.news += 1

    def entered(self, *, watched: bool, watching: bool, news: int) -> None:
        """The store's answer to a write, which came when it had told by itself `news` times.

        What it told since then is newer than the answer, as far as anybody knows.
        """
        self.watched = watched or (self.news != news and self.watched)
        self.watching = self.watching or watching

    @contextmanager
    def cancelling(self, ends: Callable[[Done], None]) -> Iterator[None]:
        """One of them is asked to cancel; ends that come meanwhile are told, before anybody else is."""
        self._cancels.append(ends)
        try:
            yield
        finally:
            self._cancels.remove(ends)

    def tell_end(self, done: Done) -> None:
        """A turn has ended, on whichever replica."""
        for ends in [*self._cancels]:
            ends(done)

    def forget(self) -> None:
        """The conversation was deleted, and all that the store had of it."""
        self.heard_seq = 0
        self.watching = self.watched = False
