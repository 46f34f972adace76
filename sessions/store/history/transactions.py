"""The structs of atomic reads and writes, and the reasons why the store refuses one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from sessions.errors import SessionError
from sessions.events import Accepted, Done, Journalled, Languages, Removed
from sessions.records import CallRecord, MessageRecord, Meta, TurnRecord
from sessions.store.history.codec import Keys, decode_call, decode_message, decode_turn
from sessions.store.history.rebuild import OlderTurn

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


FACTS = (
    "epoch",
    "seq",
    "title",
    "leaf",
    "system",
    "context_from",
    "running",
    "runner",
    "queue",
    "updated_at",
    "messages",
    "model",
)
"""The fields of a conversation's hash that hold its facts."""


def message_at(message_id: str, kept: bytes, parent: bytes, calls: Sequence[bytes]) -> MessageRecord:
    """Return a message of a branch with its current parent and its calls."""
    return decode_message(
        kept, message_id=message_id, parent_id=parent.decode() or None, calls=calls_from(calls)
    )


def calls_from(pairs_raw: Sequence[bytes]) -> tuple[CallRecord, ...]:
    """Return calls by id from a script's answer, without those whose records are gone."""
    pairs = zip(*[iter(pairs_raw)] * 2, strict=True)
    return tuple(decode_call(kept, call_id=call_id.decode()) for call_id, kept in pairs if kept)


def turn_from(keys: Keys, turn_id: str, kept: bytes) -> TurnRecord:
    """Return a turn from its record."""
    return decode_turn(kept, conversation_id=keys.conversation_id, turn_id=turn_id)


def older_turn(keys: Keys, row: Sequence[Any]) -> OlderTurn:
    """Return a turn that has left the journal, from `since`."""
    turn_id, kept, message, reply, message_calls, reply_calls = row
    record = turn_from(keys, turn_id.decode(), kept)
    return OlderTurn(record, message_from(message, message_calls), message_from(reply, reply_calls))


def message_from(kept: bytes, calls: Sequence[bytes]) -> MessageRecord | None:
    """Return a message without its parent; None if there is none."""
    return decode_message(kept, message_id="", parent_id=None, calls=calls_from(calls)) if kept else None


def is_removal(keys: Keys, row: Sequence[Any]) -> Removed:
    """Return whether a turn was rolled back, from `since`."""
    return Removed(conversation_id=keys.conversation_id, turn_id=row[0].decode(), seq=int(row[2]))


def facts_from(values: list[Any]) -> Meta | None:
    """Return the facts, given in the order of `FACTS`; None if there is no conversation."""
    if values[0] is None:
        return None
    epoch, seq, title, leaf, system, context_from, running, runner, queue, updated_at, messages, model = (
        value.decode() if value is not None else "" for value in values
    )
    return Meta(
        epoch=epoch,
        seq=int(seq),
        title=title,
        leaf=leaf or None,
        system=system,
        context_from=context_from or None,
        running=running or None,
        runner=runner or None,
        queue=queue.split(),
        updated_at=int(updated_at or 0),
        messages=int(messages or 0),
        model=model,
    )
