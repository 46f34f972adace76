"""What a reader that reconnects gets: events since a seq, merged, or rebuilt from the stored turn. Pure.

The journal keeps all that was written. What a cancel cut from a reply is left out here, and the next event covers its seqs.

The text of a rebuilt turn is one delta, right before its `done`, and its reasoning one piece before that. Calls come as they were, with
their last states only. Each event covers the seqs of the events that it stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from sessions.events import (
    Accepted,
    Delta,
    Done,
    Journalled,
    KeptLength,
    Reasoning,
    Removed,
    SourceText,
    Text,
    ToolCall,
    ToolState,
    attachments_of,
    covering,
    first_seq_of,
    kept_length,
    merge_text,
)
from sessions.records import CallRecord, ContinuedReply, MessageRecord, TurnRecord, digest


class OlderTurn(msgspec.Struct, frozen=True):
    """A turn of which the journal lacks events. `message` and `reply`: None if they were removed from the history."""

    record: TurnRecord
    message: MessageRecord | None
    reply: MessageRecord | None


class Rebuilt(msgspec.Struct, frozen=True):
    """Events in order, and the seq from which they are complete: an earlier reader missed something else."""

    first: int
    events: list[Journalled]


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has, at one moment, of the events after `after`.

    `events`: those in the journal, which begins at `first`. `ended_seq`: that of the newest end in `turns`; `whole_from`: all
    ends from there on are in `turns`.
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
    """Return all events after `after`, as far as they are kept."""
    if not journal.turns and not journal.removed:
        return Rebuilt(journal.whole_from, journal.events)
    turns = _as_they_ended(journal)
    merged = {turn.record.turn_id: texts for turn in turns if (texts := _merged(turn, journal))}
    events: list[Journalled] = [
        event for event in journal.events if not (isinstance(event, Text) and event.turn_id in merged)
    ]
    events += [event for event in journal.removed if event.seq < journal.first]
    for turn in turns:
        events += _bare(turn, journal)
    taken = {event.seq for event in events}
    texts = [text for several in merged.values() for text in _with_seqs(several, taken)]
    by_seq = {event.seq: event for event in (*events, *texts)}
    events = [by_seq[seq] for seq in sorted(by_seq)]
    missed = [event for event in events if event.seq > journal.after]
    return Rebuilt(_first(journal, texts), covered(missed, journal.after))


def _as_they_ended(journal: Journal) -> list[OlderTurn]:
    """Return the turns with their parts of the reply, which several may have written. A turn that was rolled back has none."""
    gone = {event.turn_id for event in (*journal.removed, *journal.events) if isinstance(event, Removed)}
    return [_as_it_ended(turn, is_gone=turn.record.turn_id in gone) for turn in journal.turns]


def _as_it_ended(turn: OlderTurn, *, is_gone: bool) -> OlderTurn:
    done, reply, base = turn.record.done, turn.reply, turn.record.continues
    if done is None or reply is None:
        return turn
    if base is not None and is_gone:
        done = _without_its_own(done, base, reply)
    begins, thought = (0, 0) if base is None else (base.chars, base.reasoning)
    own = msgspec.structs.replace(
        reply,
        content=reply.content[begins : done.chars],
        reasoning=reply.reasoning[thought : done.reasoning_chars],
        calls=reply.calls if reply.turn_id == turn.record.turn_id else (),
    )
    return OlderTurn(msgspec.structs.replace(turn.record, done=done), turn.message, own)


def rebuilt_turn(record: TurnRecord, reply: MessageRecord | None) -> list[Journalled]:
    """Return all events of an ended turn but `accepted`; only its end if its reply was removed."""
    done = record.done
    if done is None or reply is None:
        return [] if done is None else [done]
    journal = Journal(
        conversation_id=done.conversation_id,
        epoch="",
        after=record.accepted_seq,
        first=done.seq + 1,
        ended_seq=done.seq,
        whole_from=record.accepted_seq,
        events=[],
        turns=[OlderTurn(record, None, reply)],
        removed=[],
    )
    return rebuilt(journal).events


def _first(journal: Journal, texts: Sequence[Text]) -> int:
    for text in texts:
        if text.first_seq <= journal.after < text.seq:  # in the midst of it
            return text.seq + 1
    if journal.first <= journal.after + 1:
        return journal.first
    lost = set(range(max(journal.after, journal.ended_seq) + 1, journal.first))
    if lost - {turn.record.accepted_seq for turn in journal.turns}:  # deltas of a turn that runs
        return journal.first
    return journal.whole_from


def _merged(turn: OlderTurn, journal: Journal) -> list[Text]:
    """Return text and reasoning of an ended turn that the journal lacks a part of; the last first."""
    record, done, reply, base = turn.record, turn.record.done, turn.reply, turn.record.continues
    first_seq = min(record.text_seq or record.accepted_seq + 1, record.reasoning_seq or journal.first)
    if done is None or reply is None or first_seq >= journal.first:
        return []
    tokens = done.usage.reasoning_tokens
    texts: list[Text] = []
    if reply.content:
        texts.append(
            Delta(
                conversation_id=journal.conversation_id,
                turn_id=record.turn_id,
                seq=done.seq - 1,
                first_seq=record.text_seq or record.accepted_seq + 1,
                off=base.chars if base else 0,
                text=reply.content,
                tokens=done.usage.sent_tokens - tokens,
                src_off=None if record.source is None or turn.message is None else len(turn.message.content),
            )
        )
    if reply.reasoning:
        texts.append(
            Reasoning(
                conversation_id=journal.conversation_id,
                turn_id=record.turn_id,
                seq=done.seq - 1,
                first_seq=record.reasoning_seq or record.accepted_seq + 1,
                off=base.reasoning if base else 0,
                text=reply.reasoning,
                tokens=tokens,
            )
        )
    return texts


def _with_seqs(texts: Sequence[Text], taken: AbstractSet[int]) -> Iterator[Text]:
    """Return the seqs of their last parts, or earlier ones: a call or a queued message may come between them and the end."""
    seq = texts[0].seq
    for text in texts:
        while seq in taken:
            seq -= 1
        yield msgspec.structs.replace(text, seq=seq)
        seq = min(seq, text.first_seq) - 1 if texts[-1].first_seq < text.first_seq else seq - 1


def _bare(turn: OlderTurn, journal: Journal) -> list[Journalled]:
    """Return a turn's beginning and end, as far as the journal lacks them."""
    record, done = turn.record, turn.record.done
    events: list[Journalled] = []
    if record.accepted_seq < journal.first:
        events.append(_accepted(turn, journal))
    if done is not None and done.seq < journal.first:
        events.append(done if turn.reply is not None else _without_text(done))
    return [*events, *(event for event in _calls(turn, journal) if event.seq < journal.first)]


def _calls(turn: OlderTurn, journal: Journal) -> Iterator[Journalled]:
    """Return the calls of its reply, and the outcome of those that it answers."""
    record, conversation_id = turn.record, journal.conversation_id
    if record.done is not None:
        for call in turn.reply.calls if turn.reply is not None else ():
            yield call.call_event(conversation_id=conversation_id, turn_id=record.turn_id)
            if call.state_seq is not None and call.state_seq < record.done.seq:
                yield from _state(call, conversation_id, record.turn_id)
    if record.follows and turn.message is not None:
        for call in turn.message.calls:
            if call.state_seq is not None and call.state_seq < record.accepted_seq:
                yield from _state(call, conversation_id, record.follows)


def _state(call: CallRecord, conversation_id: str, turn_id: str) -> Iterator[Journalled]:
    if (moved := call.moved(conversation_id=conversation_id, turn_id=turn_id)) is not None:
        yield moved


def _accepted(turn: OlderTurn, journal: Journal) -> Accepted:
    return msgspec.structs.replace(
        turn.record.accepted(journal.conversation_id, journal.epoch),
        content=_content(turn.message),
        attachments=attachments_of(turn.message.images if turn.message is not None else ()),
    )


def _content(message: MessageRecord | None) -> str | None:
    """Return `accepted` of a user's message; None: the turn continues from a reply."""
    if message is None:
        return ""
    return message.content if message.role == "user" else None


def _without_its_own(done: Done, base: ContinuedReply, reply: MessageRecord) -> Done:
    """Return the end of a turn that continued a reply and was rolled back, without what it added."""
    text = digest(reply.content[: base.chars])
    return msgspec.structs.replace(
        done, chars=base.chars, text_sha256=text, reasoning_chars=base.reasoning, open=()
    )


def _without_text(done: Done) -> Done:
    """Return the end of a turn whose reply was removed later, without the reply."""
    return msgspec.structs.replace(done, chars=0, text_sha256=digest(""), reasoning_chars=0, open=())


MAX_BYTES = 256 * 1024
"""Bytes that a reader may be sent at once: half of what may wait for a connection."""
READ_BYTES = 2 * MAX_BYTES
"""Stored bytes of the journal that are read for a returning reader, approximately: one that missed more gets a gap."""
_FRAME_BYTES = 512


def replayed(events: Sequence[Journalled], cuts: Mapping[str, KeptLength]) -> list[Journalled]:
    """Return the events in order, with each turn's text, reasoning and calls cut to what is kept of them.

    `cuts`: what is kept of turns whose end is decided, but not among the events. What a cut takes out leaves no gap: `first_seq` of each
    event follows the seq of the one before.
    """
    kept = {**cuts, **{event.turn_id: kept_length(event) for event in events if isinstance(event, Done)}}
    result: list[Journalled] = []
    withdrawn: int | None = None
    for event in events:
        left: Journalled | None = event
        if isinstance(event, Delta | Reasoning | ToolCall) and event.turn_id in kept:
            left = kept[event.turn_id].of(event)
        if left is None:
            withdrawn = first_seq_of(event) if withdrawn is None else withdrawn
            continue
        result.append(left if withdrawn is None else covering(left, withdrawn))
        withdrawn = None
    return result


def covered(events: Sequence[Journalled], after: int) -> list[Journalled]:
    """Events in order, each standing for all seqs behind the one before it; the first one for those behind `after`."""
    result: list[Journalled] = []
    for event in events:
        result.append(_following(event, after + 1))
        after = event.seq
    return result


def _following(event: Journalled, first_seq: int) -> Journalled:
    """Cut a part of a text to what is kept of it."""
    if isinstance(event, Text):
        return msgspec.structs.replace(event, first_seq=first_seq)
    return covering(event, first_seq)


def merged(events: Sequence[Journalled]) -> list[Journalled]:
    """Return the events in order, with neighbouring pieces of a text merged."""
    result: list[Journalled] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Text) and isinstance(last, Text) and _goes_on(last, event):
            text, tokens = last.text + event.text, last.tokens + event.tokens
            result[-1] = merge_text(last, event, text=text, tokens=tokens)
        else:
            result.append(event)
    return result


def _goes_on(last: Text, event: Text) -> bool:
    return type(last) is type(event) and last.turn_id == event.turn_id


def is_too_long(events: Sequence[Journalled]) -> bool:
    """Return whether this is more than a connection's outbox would hold."""
    return sum(map(_bytes, events)) > MAX_BYTES


def _bytes(event: Journalled) -> int:
    match event:
        case Delta() | Reasoning():
            return sys.getsizeof(event.text)
        case Accepted(content=str(content)) | ToolCall(args=str(content)) | SourceText(text=content):
            return _FRAME_BYTES + sys.getsizeof(content)
        case ToolState():
            question = event.question.schema + event.question.message if event.question is not None else None
            return _FRAME_BYTES + sum(map(sys.getsizeof, (event.content, event.error, event.args, question)))
        case _:
            return _FRAME_BYTES
