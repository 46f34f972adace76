"""What may be connected to a turn: a source that grows while it is answered, and a player that reports what was heard.

Live translation and speech implement these; turns, conversations and generation know no more of them.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from sessions.events import Delta
from sessions.records import MessageRecord, SourceState


class Growth(msgspec.Struct, frozen=True, kw_only=True, tag="grow"):
    """More of a source: `text` follows `off` characters. `turn_id`: the turn that answers the source; None: the running one."""

    off: int
    text: str
    final: bool = False
    turn_id: str | None = None


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a growth. `chars`: the length of the source now. `already`: all of the growth was known before."""

    turn_id: str
    chars: int
    final: bool
    already: bool


class Source(Protocol):
    """The user's message of a turn that answers it while it grows. The implementation decides when each part is answered."""

    @property
    def message(self) -> MessageRecord:
        """The message with all of its text so far."""
        ...

    @property
    def read_off(self) -> int:
        """How much of the message had been read for the last text of the reply."""
        ...

    def state(self, *, chars: int | None = None) -> SourceState:
        """Return the progress, for the turn that continues the reply. `chars`: how much of the reply is kept; None: all."""
        ...


Precision = Literal["word", "chunk"]


class Player(Protocol):
    """Plays the reply of one turn, and reports what was heard of it. The turn ends after playback; a cut keeps what was heard.

    Only `over` and `settled` wait.
    """

    @property
    def heard(self) -> int:
        """How much of the text was heard."""
        ...

    @property
    def precision(self) -> Precision:
        """The precision of `heard`."""
        ...

    def begin(self, turn_id: str) -> None:
        """Begin: the message was accepted. `turn_id`: its turn's."""
        ...

    def feed(self, text: Delta) -> None:
        """Add published text."""
        ...

    async def over(self) -> None:
        """End the text: return once all of it was played, or it was stopped."""
        ...

    async def settled(self) -> None:
        """After a cut, return once it is known how much was heard, which may be less than `heard` was."""
        ...

    def stop(self) -> None:
        """Stop playing, since the turn's end is decided. May be called again."""
        ...
