"""A reader is told what it understands, and misses nothing: what is left out, the next event covers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from connections.outbox import Outbox
from connections.protocol.base import REASONING, TOOLS
from connections.protocol.frames import Frame, for_features
from sessions.events import (
    ControlEvent,
    Delta,
    Journalled,
    Reason,
    Reasoning,
    Status,
    Text,
    ToolCall,
    first_seq_of,
)
from sessions.turn.turn import SentOffsets
from tests.connections.connection.test_outbox import status
from tests.connections.factory import accepted, call, call_state, delta, done, reasoning

KINDS = st.lists(st.sampled_from(["delta", "reasoning", "call", "state"]), max_size=20)
FEATURES = st.sets(st.sampled_from([REASONING, TOOLS])).map(frozenset)


def events(kinds: Iterable[str]) -> list[Journalled]:
    """A turn of pieces, each with its seq."""
    journal: list[Journalled] = [accepted()]
    off = reasoning_off = 0
    for seq, kind in enumerate(kinds, start=2):
        match kind:
            case "delta":
                journal.append(delta("ab", seq=seq, off=off))
                off += 2
            case "reasoning":
                journal.append(reasoning("xyz", reasoning_off, seq=seq))
                reasoning_off += 3
            case "call":
                journal.append(call(f"call-{seq}", seq=seq, off=off))
            case _:
                journal.append(call_state("call", seq=seq, content="x"))
    return [*journal, done(chars=off, seq=len(journal) + 1)]


class Reader:
    """As a connection puts and takes, with a transport that is late whenever the test says so."""

    def __init__(self, features: frozenset[str]) -> None:
        self.outbox = Outbox(max_bytes=10**9)
        self.features = features
        self.received: list[Frame] = []
        self.sent = SentOffsets()

    def put(self, event: Journalled, *, is_late: bool) -> None:
        if (frame := for_features(event, self.features)) is None:
            self.outbox.leave_out(event)
            return
        if not is_late and (passed := self.outbox.pass_nowait(frame, self.sent)) is not None:
            self.received.append(passed)
            return
        self.outbox.put_nowait(frame, sent=self.sent)
        if not is_late:
            self.catch_up()

    def catch_up(self) -> None:
        self.received += iter(self.outbox.take_nowait, None)

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(first_seq_of(one), one.seq) for one in self.received if isinstance(one, Text | ControlEvent)]


def whole(spans: list[tuple[int, int]]) -> bool:
    return all(after[0] == before[1] + 1 for before, after in pairwise(spans))


@given(KINDS, FEATURES, st.data())
def test_continuity_holds_whatever_a_reader_understands(
    kinds: list[str], features: frozenset[str], data: st.DataObject
) -> None:
    reader = Reader(features)
    published = events(kinds)
    for event in published:
        reader.put(event, is_late=data.draw(st.booleans()))
    reader.catch_up()
    assert reader.spans[0][0] == 1
    assert reader.spans[-1][1] == published[-1].seq
    assert whole(reader.spans)
    texts = [one for one in reader.received if isinstance(one, Delta)]
    assert "".join(one.text for one in texts) == "ab" * kinds.count("delta")
    thoughts = "".join(one.text for one in reader.received if isinstance(one, Reasoning))
    assert thoughts == ("xyz" * kinds.count("reasoning") if REASONING in features else "")
    calls = [one for one in reader.received if isinstance(one, ToolCall)]
    assert len(calls) == (kinds.count("call") if TOOLS in features else 0)


@given(KINDS, FEATURES, st.integers(0, 20), st.integers(0, 30), st.data())
def test_what_is_withdrawn_of_text_reasoning_and_calls_is_covered(
    kinds: list[str], features: frozenset[str], chars: int, reasoning_off: int, data: st.DataObject
) -> None:
    reader = Reader(features)
    *pieces, end = events(kinds)
    for event in pieces:
        reader.put(event, is_late=data.draw(st.booleans()))
    chars = max(chars, reader.sent.text)
    reasoning_off = max(reasoning_off, reader.sent.reasoning)
    calls = [one for one in reader.received if isinstance(one, ToolCall)]
    chars = max([chars, *(one.off for one in calls)])
    reader.outbox.withdraw("t", chars, reasoning_off)
    reader.put(end, is_late=False)
    reader.catch_up()
    assert whole(reader.spans)
    assert reader.spans[-1][1] == end.seq
    text = "".join(one.text for one in reader.received if isinstance(one, Delta))
    assert text == ("ab" * kinds.count("delta"))[:chars]
    assert all(one.off <= chars for one in reader.received if isinstance(one, ToolCall))
    assert reader.outbox.statistics().bytes == 0


def test_an_end_has_what_its_reader_understands() -> None:
    end = done(reason=Reason.TOOLS, open=("call-1",), reasoning_chars=7)
    for features, changed in (
        ({TOOLS, REASONING}, {}),
        ({TOOLS}, {"reasoning_chars": 0}),
        ({REASONING}, {"reason": Reason.STOP, "open": ()}),  # the reply has come to its end
    ):
        assert for_features(end, frozenset(features)) == msgspec.structs.replace(end, **changed)


def test_how_far_a_tool_is_goes_to_those_who_know_tools() -> None:
    waits = status(1)
    tool = Status(conversation_id="c", turn_id="t", state="tool", call_id="call")
    assert for_features(waits, frozenset()) == waits
    assert for_features(tool, frozenset()) is None
    assert for_features(tool, frozenset({TOOLS})) == tool
