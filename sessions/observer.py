"""What the sessions floor tells whoever measures it. It knows no metrics library."""

from __future__ import annotations

from typing import Protocol

from sessions.events import Done
from sessions.records import Client


class Observer(Protocol):
    """Called on the event loop, synchronously; must not raise."""

    def first_token(self, seconds: float) -> None:
        """A turn's first delta was published so long after it was accepted."""
        ...

    def gap(self, seconds: float) -> None:
        """Two deltas of a turn were published so far apart."""
        ...

    def ended(self, done: Done, client: Client) -> None:
        """A turn ended that this client began."""
        ...


class Silent:
    """An observer that measures nothing."""

    def first_token(self, seconds: float) -> None:
        """Ignores it."""

    def gap(self, seconds: float) -> None:
        """Ignores it."""

    def ended(self, done: Done, client: Client) -> None:
        """Ignores it."""


class Several:
    """Observers that are all told."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def first_token(self, seconds: float) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.first_token(seconds)

    def gap(self, seconds: float) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.gap(seconds)

    def ended(self, done: Done, client: Client) -> None:
        """Tells all."""
        for observer in self._observers:
            observer.ended(done, client)
