"""Random journals with random cuts: what a reader saw before it left, and what it is told again, have neither a hole nor a word too much."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.events import (
    Accepted,
    Delta,
    Done,
    Event,
    Journalled,
    KeptLength,
    Reason,
    Removed,
    Timing,
    Usage,
)
from sessions.records import digest
from sessions.store.journal import replayed
from tests.sessions.recorder import continuous, seqs

USAGE = Usage(prompt_tokens=0, cached_tokens=0, generated_tokens=0, sent_tokens=0, wasted_tokens=0)
TIMING = Timing(queued_ms=None, first_token_ms=None, total_ms=0.0)
ROOM = "room"


class ExpectedConversation(msgspec.Struct):
    """A conversation as its journal has it; `cut`: how much of each reply is kept, if that is decided."""

    events: list[Journalled]
    cut: dict[str, KeptLength]
    kept: dict[str, str]


@st.composite
def journals(draw: st.DrawFn) -> ExpectedConversation:
    """Turns one after the other, some of which left the history; the last one may have no end yet."""
    expected = ExpectedConversation([], {}, {})
    turns = draw(st.integers(1, 4))
    for number in range(turns):
        is_running = number == turns - 1 and draw(st.booleans())
        _turn(draw, expected, f"turn-{number}", is_running=is_running)
    return expected


def _turn(draw: st.DrawFn, expected: ExpectedConversation, turn_id: str, *, is_running: bool) -> None:
    seq = len(expected.events) + 1
    expected.events.append(
        Accepted(conversation_id=ROOM, client_msg_id="m", turn_id=turn_id, message_id="u", epoch="e", seq=seq)
    )
    text = ""
    for part in draw(st.lists(st.text(st.sampled_from("añ한👍"), min_size=1, max_size=4), max_size=6)):
        expected.events.append(delta(turn_id, len(expected.events) + 1, len(text), part))
        text += part
    cut = draw(st.none() | st.integers(0, len(text)))
    expected.kept[turn_id] = text if cut is None else text[:cut]
    if cut is not None:
        expected.cut[turn_id] = KeptLength(cut)
    if is_running:
        return
    expected.events.append(done(turn_id, len(expected.events) + 1, expected.kept[turn_id]))
    if draw(st.booleans()):
        expected.events.append(Removed(conversation_id=ROOM, turn_id=turn_id, seq=len(expected.events) + 1))


def delta(turn_id: str, seq: int, off: int, text: str) -> Delta:
    return Delta(conversation_id=ROOM, turn_id=turn_id, seq=seq, first_seq=seq, off=off, text=text, tokens=1)


def done(turn_id: str, seq: int, kept: str) -> Done:
    return Done(
        conversation_id=ROOM,
        turn_id=turn_id,
        message_id="r",
        seq=seq,
        reason=Reason.CANCELLED,
        chars=len(kept),
        usage=USAGE,
        timing=TIMING,
        text_sha256=digest(kept),
        saved=True,
    )


def text_of(events: Iterable[Event], turn_id: str) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.turn_id == turn_id)


@settings(max_examples=50)
@given(journals(), st.data())
def test_what_was_seen_and_what_is_told_again_are_continuous(
    expected: ExpectedConversation, data: st.DataObject
) -> None:
    seen = data.draw(st.integers(0, len(expected.events)))
    events = [*expected.events[:seen], *replayed(expected.events[seen:], expected.cut)]
    assert continuous(events)
    for end in (event for event in events if isinstance(event, Done)):
        assert text_of(events, end.turn_id)[: end.chars] == expected.kept[end.turn_id]


@settings(max_examples=50)
@given(journals())
def test_whoever_saw_nothing_is_told_what_the_history_says(expected: ExpectedConversation) -> None:
    events = replayed(expected.events, expected.cut)
    assert {turn_id: text_of(events, turn_id) for turn_id in expected.kept} == expected.kept
    ends = [event for event in events if isinstance(event, Done)]
    assert all(digest(text_of(events, end.turn_id)) == end.text_sha256 for end in ends)
    assert len(ends) == sum(isinstance(event, Done) for event in expected.events)


@settings(max_examples=50)
@given(journals())
def test_only_what_a_cut_withdrew_at_the_very_end_is_covered_later(expected: ExpectedConversation) -> None:
    """By the next event, whose seqs begin where these end."""
    events = replayed(expected.events, expected.cut)
    last = seqs(events)[-1][1]
    assert all(isinstance(event, Delta) for event in expected.events[last:])
    assert not expected.events[last:] or isinstance(expected.events[-1], Delta)


@settings(max_examples=50)
@given(journals(), st.data())
def test_a_replay_is_the_same_in_two_parts(expected: ExpectedConversation, data: st.DataObject) -> None:
    """A reader that leaves again in the middle of it misses nothing either."""
    events = replayed(expected.events, expected.cut)
    half = data.draw(st.integers(0, len(events)))
    seen = events[:half]
    after = seqs(seen)[-1][1] if seen else 0
    rest = replayed(expected.events[after:], expected.cut)
    assert continuous([*seen, *rest])
    assert {turn: text_of([*seen, *rest], turn) for turn in expected.kept} == expected.kept
