"""Replays the journal to a reader that was away, as the history has it now. Pure.

The journal keeps all that was written. What a cancel cut from a reply is left out here, and the next event covers its seqs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from sessions.events import (
    Accepted,
    Delta,
    Done,
    Journalled,
    Reasoning,
    SourceText,
    Text,
    ToolCall,
    ToolState,
    covering,
    first_seq_of,
)
from sessions.truncation import KeptLength, kept_length, merge_text

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
