"""The sessions layer's interface for measurements. Knows no metrics library."""

from __future__ import annotations

from sessions.events import Done
from sessions.records import Client


class Observer:
    """Called on the event loop, synchronously; must not raise. This one measures nothing: derive from it."""

    def began(self, turn_id: str, model: str, accepted_at: float) -> None:
        """A turn is about to ask the engine. Called in the turn's task. `accepted_at`: by the monotonic clock."""

    def first_token(self, seconds: float) -> None:
        """A turn's first delta was published this long after it was accepted."""

    def gap(self, seconds: float) -> None:
        """Two deltas of a turn were published this far apart."""

    def ended(self, done: Done, client: Client) -> None:
        """A turn of this client ended. If it never ran, `began` was not called for it."""

    def tool_ended(self, name: str, call_id: str, seconds: float, failure: str | None) -> None:
        """A server tool ran for this time. `failure`: the kind of failure, one word; None: it succeeded."""


class CompositeObserver(Observer):
    """Passes everything on to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def began(self, turn_id: str, model: str, accepted_at: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.began(turn_id, model, accepted_at)

    def first_token(self, seconds: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.first_token(seconds)

    def gap(self, seconds: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.gap(seconds)

    def ended(self, done: Done, client: Client) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.ended(done, client)

    def tool_ended(self, name: str, call_id: str, seconds: float, failure: str | None) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.tool_ended(name, call_id, seconds, failure)
