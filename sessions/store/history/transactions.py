"""The structs of atomic reads and writes, and the reasons why the store refuses one."""

from __future__ import annotations

from typing import cast

import msgspec

from sessions.errors import SessionError
from sessions.events import Accepted, Done, Journalled, Languages
from sessions.records import CallRecord, MessageRecord, TurnRecord

MAX_SIBLINGS = 200
"""Siblings of a message that a reader is told, so that a page stays small."""


class StaleFacts(SessionError):
    """The conversation in the store is not as the caller knows it: load it again."""


class Duplicate(SessionError):
    """The `client_msg_id` has a turn already."""

    def __init__(self, turn: TurnRecord) -> None:
        super().__init__(turn.turn_id)
        self.turn = turn


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn is accepted. `message`: None if it is in the history already, and gets another answer.

    `titled_by`: the languages that the title stands for, if it does. `continues`: the message's parent must still be the
    active leaf. `model`: the one that the sender named, or empty. A turn that continues a reply has no message
    and no new place.
    """

    message: MessageRecord | None
    turn: TurnRecord
    event: Accepted
    title: str
    titled_by: Languages | None = None
    system: str
    context_from: str
    continues: bool = False
    model: str = ""


class Follow(msgspec.Struct, frozen=True):
    """The turn that follows once calls are settled: its id, its reply's id, and the data to run it."""

    turn_id: str
    reply_id: str
    record: bytes


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written when a turn ends; `turn.done` is the event. `follow`: set if its calls are open.

    `stays`: the reply that it continued stays as it was, since the turn added nothing.
    """

    reply: MessageRecord
    turn: TurnRecord
    follow: Follow | None = None
    stays: bool = False

    @property
    def done(self) -> Done:
        """The event, which every ended turn has."""
        return cast("Done", self.turn.done)


class Siblings(msgspec.Struct, frozen=True):
    """A message and its siblings, oldest first.

    `told`: the ids of the nearest, at most `MAX_SIBLINGS`; `count`: their number; `before`: the number of older ones.
    """

    shown_ids: list[str]
    count: int
    before: int


class Branch(msgspec.Struct, frozen=True):
    """Messages, oldest first, with their siblings, and the message before them, if any.

    `pending`: unfinished replies among these messages, each with its siblings. `is_running`: whether a turn has not ended.
    """

    epoch: str
    seq: int
    messages: list[MessageRecord]
    siblings: list[Siblings]
    older: str | None
    pending: dict[str, Siblings] = {}
    is_running: bool = False


class Since(msgspec.Struct, frozen=True):
    """The journal after a seq, as the store has it at one moment. `first`: the seq of the oldest kept event.

    `running`: the turn that has not ended. `is_too_long`: the events have more bytes than asked for, and are left out.
    `awaited`: all calls of the reply whose turn waits for them, if none runs. `base`: the reply that `running` continues.
    """

    epoch: str
    seq: int
    running: TurnRecord | None
    first: int
    events: list[Journalled]
    is_too_long: bool = False
    awaited: tuple[CallRecord, ...] = ()
    base: MessageRecord | None = None
