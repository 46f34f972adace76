"""What may be connected to a turn from outside: a player that reports what was heard of its reply."""

from __future__ import annotations

from typing import Literal, Protocol

from sessions.events import Delta

Precision = Literal["word", "chunk"]


class Player(Protocol):
    """Plays the reply of one turn, and reports what was heard of it. The turn ends once it was played; a cut keeps what was heard.

    Only `over` and `settled` wait.
    """

    @property
    def heard(self) -> int:
        """Return how much of the text was heard."""
        ...

    @property
    def precision(self) -> Precision:
        """The precision of that."""
        ...

    def begin(self, turn_id: str) -> None:
        """Begin: the message was accepted, and its turn has this id."""
        ...

    def feed(self, text: Delta) -> None:
        """Add published text."""
        ...

    async def over(self) -> None:
        """End the text: return once all of it was played, or it was stopped."""
        ...

    async def settled(self) -> None:
        """The turn was cut: return once it is known how much was heard, which may be less than it seemed."""
        ...

    def stop(self) -> None:
        """Stop playing, since the turn's end is decided. May be called again."""
        ...
