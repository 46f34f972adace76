"""What the store is given, and what it gives, in one piece; and why it refuses it."""

from __future__ import annotations

from typing import cast

import msgspec

from sessions.errors import SessionError
from sessions.events import Accepted, Done, Journalled
from sessions.records import CallRecord, MessageRecord, TurnRecord

MAX_SIBLINGS = 200
"""Of one message, that a reader is told: a page stays small, whatever its conversation has become."""


class Moved(SessionError):
    """The store knows more (or less) of the conversation than the caller: load it again."""


class Duplicate(SessionError):
    """The `client_msg_id` has its turn already."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.turn_id)
        self.turn = turn


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn is accepted. `message` None: it is in the history already, and answered once more.

    `continues`: the message's parent must still be the active leaf. `model`: which one its sender named; empty: none.
    A turn that goes on with a reply has no message, and no new place.
    """

    message: MessageRecord | None
    turn: TurnRecord
    event: Accepted
    title: str
    system: str
    context_from: str
    continues: bool = False
    model: str = ""


class Follow(msgspec.Struct, frozen=True):
    """The turn that follows once calls are settled: its id, its reply's, and what whoever goes on with it has to know."""

    turn_id: str
    reply_id: str
    record: bytes


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn ends; `turn.done` is the event. `follow`: where its calls are open.

    `stays`: the reply that it went on with stands as it did, since it added nothing.
    """

    reply: MessageRecord
    turn: TurnRecord
    follow: Follow | None = None
    stays: bool = False

    @property
    def done(self) -> Done:
        """The event. A turn that ends has one."""
        return cast("Done", self.turn.done)


class Siblings(msgspec.Struct, frozen=True):
    """The messages that share a message's parent, in the order in which they came, itself too.

    `told`: the ids of those nearest to it, `MAX_SIBLINGS` at most; `count`: how many there are; `before`: how many of
    them came before it.
    """

    told: list[str]
    count: int
    before: int


class Branch(msgspec.Struct, frozen=True):
    """Messages oldest first with their siblings, and the older message that comes before them, if any.

    `pending`: replies that have their place among these messages and no end yet, each with its siblings. `is_running`: a
    turn has no end yet.
    """

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[Siblings]
    older: str | None
    pending: dict[str, Siblings] = {}
    is_running: bool = False


class Since(msgspec.Struct, frozen=True):
    """The journal behind a seq, as the store has it at one moment. `first`: seq of the oldest event that is kept.

    `running` is the turn that has no end yet. `is_too_long`: the events have more bytes than were asked for, and are not here.
    `awaited`: where no turn runs, but one waits for calls, all of its reply's. `base`: the reply that `running` goes on with.
    """

    epoch: str
    seq: int
    running: TurnRecord | None
    first: int
    events: list[Journalled]
    is_too_long: bool = False
    awaited: tuple[CallRecord, ...] = ()
    base: MessageRecord | None = None
