"""Reads the answers of scripts as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sessions.events import Removed
from sessions.records import CallRecord, MessageRecord, Meta, TurnRecord
from sessions.store.history.codec import decode_call, decode_message, decode_turn
from sessions.store.history.keys import Keys
from sessions.store.history.rebuild import OlderTurn

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
