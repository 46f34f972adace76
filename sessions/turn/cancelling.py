"""A cancel of a client or an operator, and its outcome."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessions.events import Cause


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """End a turn, or all turns of a conversation if none is named.

    `conversation_id` None: that of the turn. `seen_off`: how much of the reply its reader saw; `rollback`: remove the exchange
    from the history; `by_operator`: an operator cancels.
    """

    conversation_id: str | None = None
    turn_id: str | None = None
    seen_off: int | None = None
    rollback: bool = False
    by_operator: bool = False

    @property
    def cause(self) -> Cause:
        """The reason of the end that it decides."""
        if self.by_operator:
            return Cause.OPERATOR
        return Cause.ROLLBACK if self.rollback else Cause.CLIENT

    def means(self, turn_id: str) -> bool:
        """Return whether it ends a turn of its conversation."""
        return self.turn_id in (None, turn_id)


class Cancelled(msgspec.Struct, frozen=True):
    """The outcome of a cancel. `turn_id` None: nothing ran; `already`: the turn had ended, or its end was decided.

    `is_part`: further turns may run on another replica; `is_forwarded`: one does, or will.
    """

    turn_id: str | None
    already: bool
    is_part: bool = False
    is_forwarded: bool = False


Tell = Callable[[Cancelled], None]
