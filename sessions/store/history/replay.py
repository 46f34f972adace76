"""What a reader who was away is told again: the journal as the history knows it. Pure.

The journal keeps all that was ever written; what a cancel took back of a reply is left out here, and the next event
covers its seqs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from sessions.events import Accepted, Bare, Delta, Done, Journalled, covering

MAX_BYTES = 256 * 1024
"""What a reader may be told at once: half of what may wait for a connection."""
READ_BYTES = 2 * MAX_BYTES
"""Of the journal, as it is stored, at most about so much is read for a reader who comes back: who missed more gets a gap."""
_FRAME_BYTES = 512


def replayed(events: Sequence[Journalled], cuts: Mapping[str, int]) -> list[Journalled]:
    """Events in order, each turn's text cut to what is kept of it.

    `cuts`: code points that are kept of turns whose end is decided, but not among the events. Whoever saw what came
    before them sees no hole: `first_seq` of each is behind the seq of the one before.
    """
    kept = {**cuts, **{event.turn_id: event.chars for event in events if isinstance(event, Done)}}
    told: list[Journalled] = []
    withdrawn: int | None = None
    for event in events:
        if isinstance(event, Delta):
            if (left := _cut(event, kept.get(event.turn_id))) is not None:
                told.append(left)
            elif withdrawn is None:
                withdrawn = event.first_seq
        else:
            told.append(_covering(event, withdrawn))
            withdrawn = None
    return told


def is_too_long(events: Sequence[Journalled]) -> bool:
    """Whether a reader would be cut off as too slow before it had a chance to take all of this."""
    return sum(map(_bytes, events)) > MAX_BYTES


def _bytes(event: Journalled) -> int:
    match event:
        case Delta():
            return sys.getsizeof(event.text)
        case Accepted(content=str(content)):
            return _FRAME_BYTES + sys.getsizeof(content)
        case _:
            return _FRAME_BYTES


def _covering(event: Bare, withdrawn: int | None) -> Bare:
    return event if withdrawn is None else covering(event, withdrawn)


def _cut(delta: Delta, chars: int | None) -> Delta | None:
    if chars is None or delta.off + len(delta.text) <= chars:
        return delta
    if delta.off >= chars:
        return None
    return msgspec.structs.replace(delta, text=delta.text[: chars - delta.off])
