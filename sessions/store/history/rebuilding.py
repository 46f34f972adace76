"""The events of ended turns whose deltas have left the journal, made anew of what the history keeps of them. Pure.

A turn's text is one delta then, right before its `done`; each event covers the seqs of what is not told apart any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from sessions.events import Accepted, Delta, Done, Journalled, Removed, Text, covering
from sessions.records import TurnRecord, digest


class OlderTurn(msgspec.Struct, frozen=True):
    """A turn of which the journal lacks events. `message` and `reply`: their texts, None where they left the history."""

    record: TurnRecord
    message: str | None
    reply: str | None


class Rebuilt(msgspec.Struct, frozen=True):
    """Events in order, and the seq from which on they are all: a reader that came less far missed something else."""

    first: int
    events: list[Journalled]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What the store said at one moment of the events behind `after`.

    `events`: of those in the journal, which begins at `first`. `ended_seq`: of the newest end that `turns` knows of;
    `whole_from`: all ends from there on are among `turns`.
    """

    conversation_id: str
    epoch: str
    after: int
    first: int
    ended_seq: int
    whole_from: int
    events: list[Journalled]
    turns: list[OlderTurn]
    removed: list[Removed]


def rebuilt(journal: Journal) -> Rebuilt:
    """All events behind `after`, as far as they are kept."""
    if not journal.turns and not journal.removed:
        return Rebuilt(journal.whole_from, journal.events)
    merged = {turn.record.turn_id: delta for turn in journal.turns if (delta := _merged(turn, journal))}
    events: list[Journalled] = [
        event for event in journal.events if not (isinstance(event, Delta) and event.turn_id in merged)
    ]
    events += [event for event in journal.removed if event.seq < journal.first]
    for turn in journal.turns:
        events += _bare(turn, journal)
    taken = {event.seq for event in events}
    texts = [_placed(delta, taken) for delta in merged.values()]
    events = sorted([*events, *texts], key=lambda event: event.seq)
    missed = [event for event in events if event.seq > journal.after]
    return Rebuilt(_first(journal, texts), _covered(missed, journal.after))


def _first(journal: Journal, texts: Sequence[Delta]) -> int:
    for text in texts:
        if text.first_seq <= journal.after < text.seq:  # in the midst of it
            return text.seq + 1
    if journal.first <= journal.after + 1:
        return journal.first
    lost = set(range(max(journal.after, journal.ended_seq) + 1, journal.first))
    if lost - {turn.record.accepted_seq for turn in journal.turns}:  # deltas of a turn that runs
        return journal.first
    return journal.whole_from


def _merged(turn: OlderTurn, journal: Journal) -> Delta | None:
    """The text of an ended turn of which the journal lacks a part."""
    record, done = turn.record, turn.record.done
    first_seq = record.text_seq or record.accepted_seq + 1
    if done is None or not turn.reply or first_seq >= journal.first:
        return None
    return Delta(
        conversation_id=journal.conversation_id,
        turn_id=record.turn_id,
        seq=done.seq - 1,
        first_seq=first_seq,
        off=0,
        text=turn.reply,
        tokens=done.usage.sent_tokens,
    )


def _placed(delta: Delta, taken: AbstractSet[int]) -> Delta:
    """Where its last part stood: a message may have been accepted between that and the end."""
    seq = delta.seq
    while seq in taken:
        seq -= 1
    return msgspec.structs.replace(delta, seq=seq)


def _bare(turn: OlderTurn, journal: Journal) -> list[Journalled]:
    """Its beginning and its end, as far as the journal lacks them."""
    record, done = turn.record, turn.record.done
    events: list[Journalled] = []
    if record.accepted_seq < journal.first:
        events.append(_accepted(turn, journal))
    if done is not None and done.seq < journal.first:
        events.append(done if turn.reply is not None else _without_text(done))
    return events


def _accepted(turn: OlderTurn, journal: Journal) -> Accepted:
    record = turn.record
    return Accepted(
        conversation_id=journal.conversation_id,
        client_msg_id=record.client_msg_id,
        turn_id=record.turn_id,
        message_id=record.message_id,
        epoch=journal.epoch,
        seq=record.accepted_seq,
        content=turn.message or "",
        parent_id=record.parent_id,
        model=record.model or None,
    )


def _without_text(done: Done) -> Done:
    """The end of a turn whose reply was taken out later: nothing of it is told any more."""
    return msgspec.structs.replace(done, chars=0, text_sha256=digest(""))


def _covered(events: Sequence[Journalled], after: int) -> list[Journalled]:
    told: list[Journalled] = []
    for event in events:
        told.append(_following(event, after + 1))
        after = event.seq
    return told


def _following(event: Journalled, first_seq: int) -> Journalled:
    """The event where all before `first_seq` was told. A part of a text stands for no more than what is left of it."""
    if isinstance(event, Text):
        return msgspec.structs.replace(event, first_seq=first_seq)
    return covering(event, first_seq)
