"""A cancel of a client or an operator, and its outcome."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessions.events import Cause, Done
from sessions.turn.turn import Turn


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """End a turn, or all turns of a conversation if none is named.

    `conversation_id` None: that of the turn. `turn_id`: the turn that follows its calls is meant, too. `client_msg_id`: the
    turn that answers this message now. `seen_off`: how much of the reply its reader saw; of one that follows `turn_id`, nothing.
    `rollback`: remove the exchange from the history; `by_operator`: an operator cancels.
    """

    conversation_id: str | None = None
    turn_id: str | None = None
    client_msg_id: str | None = None
    seen_off: int | None = None
    rollback: bool = False
    by_operator: bool = False

    @property
    def cause(self) -> Cause:
        """The reason of the end that it decides."""
        if self.by_operator:
            return Cause.OPERATOR
        return Cause.ROLLBACK if self.rollback else Cause.CLIENT

    @property
    def is_whole(self) -> bool:
        """Whether it ends all turns of its conversation."""
        return self.turn_id is None and self.client_msg_id is None

    def matches(self, live: Turn) -> bool:
        """Return whether it ends a turn of its conversation."""
        if self.client_msg_id is not None:
            return live.send.client_msg_id == self.client_msg_id
        return self.turn_id in (None, live.turn.ids.turn_id, live.record.follows)

    def may_cause(self, done: Done) -> bool:
        """Return whether the end of a turn that runs elsewhere may be its outcome."""
        is_requested = done.cancel is not None and done.cancel.cause in (
            Cause.CLIENT,
            Cause.ROLLBACK,
            Cause.OPERATOR,
        )
        is_open = self.turn_id is None or self.client_msg_id is not None
        return is_requested and (is_open or self.turn_id in (done.turn_id, done.follows))

    def seen_off_for(self, live: Turn) -> int | None:
        """Return how much of a turn that it means was seen; None if nobody says."""
        is_named = self.turn_id in (None, live.turn.ids.turn_id)
        return self.seen_off if is_named or self.seen_off is None else 0


class Cancelled(msgspec.Struct, frozen=True):
    """The outcome of a cancel. `turn_id` None: nothing ran; `already`: the turn had ended, or its end was decided.

    `is_part`: further turns may run on another replica; `is_forwarded`: one does, or will.
    """

    turn_id: str | None
    already: bool
    is_part: bool = False
    is_forwarded: bool = False


OnCancelled = Callable[[Cancelled], None]
