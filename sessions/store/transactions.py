"""What the store is given, and what it gives, in one piece; and why it refuses it."""

from __future__ import annotations

from typing import cast

import msgspec

from sessions.errors import SessionError
from sessions.events import Accepted, Done, Journalled
from sessions.records import MessageRecord, TurnRecord


class Moved(SessionError):
    """The store knows more (or less) of the conversation than the caller: load it again."""


class Duplicate(SessionError):
    """The `client_msg_id` has its turn already."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.turn_id)
        self.turn = turn


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn is accepted. `message` None: it is in the history already, and answered once more.

    `continues`: the message's parent must still be the active leaf.
    """

    message: MessageRecord | None
    turn: TurnRecord
    event: Accepted
    title: str
    system: str
    context_from: str
    continues: bool = False


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn ends; `turn.done` is the event."""

    reply: MessageRecord
    turn: TurnRecord

    @property
    def done(self) -> Done:
        """The event. A turn that ends has one."""
        return cast("Done", self.turn.done)


class Branch(msgspec.Struct, frozen=True):
    """Messages oldest first with their siblings, and the older message that comes before them, if any.

    `pending`: replies that have their place among these messages and no end yet, each with its siblings.
    """

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[list[str]]
    older: str | None
    pending: dict[str, list[str]] = {}


class Since(msgspec.Struct, frozen=True):
    """The journal behind a seq, as the store has it at one moment. `first`: seq of the oldest event that is kept.

    `running` is the turn that has no end yet.
    """

    epoch: str
    seq: int
    running: TurnRecord | None
    first: int
    events: list[Journalled]
