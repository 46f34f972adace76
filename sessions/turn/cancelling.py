"""What a cancel of a client's or an operator's asks for, and what it met."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessions.events import Cause


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """End a turn, or all of a conversation's where none is named.

    `conversation_id` None: wherever the turn is. `seen_off`: how much of the reply its reader saw; `rollback`: the
    exchange leaves the history; `by_operator`: it is no client's.
    """

    conversation_id: str | None = None
    turn_id: str | None = None
    seen_off: int | None = None
    rollback: bool = False
    by_operator: bool = False

    @property
    def cause(self) -> Cause:
        """What is told of the end that it decides."""
        if self.by_operator:
            return Cause.OPERATOR
        return Cause.ROLLBACK if self.rollback else Cause.CLIENT

    def means(self, turn_id: str) -> bool:
        """Whether a turn of its conversation is to end."""
        return self.turn_id in (None, turn_id)


class Cancelled(msgspec.Struct, frozen=True):
    """What a cancel met. `turn_id` None: nothing ran; `already`: it had ended, or its end was decided.

    `is_part`: others that it means may run on another replica; `is_forwarded`: one of them does, or will.
    """

    turn_id: str | None
    already: bool
    is_part: bool = False
    is_forwarded: bool = False


Tell = Callable[[Cancelled], None]
