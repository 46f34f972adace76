"""Whatever waits, merges, overtakes or is withdrawn: a reader sees every conversation in order and misses nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from connections.outbox import MERGED_CHARS, Outbox
from connections.protocol import codec
from connections.protocol.frames import Cancelled, ConversationsPage, Error, Frame, Pong
from sessions.events import (
    Accepted,
    CancelFacts,
    Cause,
    Deleted,
    Delta,
    Done,
    Snapshot,
    Status,
    ToolCall,
)
from sessions.store.index import Listed
from sessions.turn.turn import SentOffsets
from tests.connections.factory import accepted, call, delta, done, page, shown_message

CANCEL = CancelFacts(cause=Cause.CLIENT, latency_ms=1.0, steps_after=0)


def status(place: int, *, turn: str = "t", conversation: str = "c") -> Status:
    return Status(conversation_id=conversation, turn_id=turn, state="queued", queue_position=place)


def drained(outbox: Outbox) -> list[Frame]:
    return list(iter(outbox.take_nowait, None))


class Sent:
    """A conversation that publishes as the sessions floor does: every event takes the next seq."""

    def __init__(self, place: str, outbox: Outbox) -> None:
        self.place = place
        self.outbox = outbox
        self.seq = 0
        self.turns = 0
        self.text: str | None = None
        self.kept: dict[str, str] = {}
        self.handed = SentOffsets()

    @property
    def turn(self) -> str:
        return f"{self.place}-{self.turns}"

    def write(self, text: str) -> None:
        if self.text is None:
            self.turns += 1
            self.seq += 1
            self.text = ""
            self.handed = SentOffsets()
            self.put(accepted(self.turn, conversation_id=self.place, seq=self.seq))
        self.seq += 1
        self.put(delta(text, len(self.text), self.turn, seq=self.seq, place=self.place))
        self.text += text

    def wait(self, place: int) -> None:
        self.put(status(place, turn=self.turn, conversation=self.place))

    def end(self) -> None:
        if self.text is not None:
            self.finish(self.text)

    def cancel(self, seen: int) -> None:
        if self.text is None:
            return
        cut = min(self.handed.text, seen)
        self.outbox.withdraw(self.turn, cut, 0)
        self.put(Cancelled(turn_id=self.turn, already=False))
        self.finish(self.text[:cut], unpublished=1, cancel=CANCEL)

    def finish(self, kept: str, *, unpublished: int = 0, **more: Any) -> None:
        """`unpublished`: seqs of deltas that were journalled and never given to anybody."""
        first = self.seq + 1
        self.seq += unpublished + 1
        if unpublished:
            more["first_seq"] = first
        self.put(done(self.turn, len(kept), conversation_id=self.place, seq=self.seq, **more))
        self.kept[self.turn] = kept
        self.text = None

    def put(self, frame: Frame) -> None:
        self.outbox.put_nowait(frame, sent=self.handed)
        codec.encode(frame)  # as the journal, or another connection, does; a string's memory grows by it


class Reader:
    """What a client makes of the frames, by the words of the protocol."""

    def __init__(self) -> None:
        self.seq: dict[str, int] = {}
        self.text: dict[str, str] = {}

    def read(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            match frame:
                case Accepted() | Delta() | Done():
                    first = getattr(frame, "first_seq", None) or frame.seq
                    assert first == self.seq.get(frame.conversation_id, 0) + 1
                    self.seq[frame.conversation_id] = frame.seq
            match frame:
                case Delta():
                    assert frame.off == len(self.text.get(frame.turn_id, ""))
                    assert len(frame.text.encode()) <= 64 * 1024
                    self.text[frame.turn_id] = self.text.get(frame.turn_id, "") + frame.text
                case Done():
                    assert len(self.text.setdefault(frame.turn_id, "")) >= frame.chars
                    self.text[frame.turn_id] = self.text[frame.turn_id][: frame.chars]


TEXTS = st.sampled_from(["a", " word", "字", "😀" * 3_000, "é" * 9_000])
PLACES = st.sampled_from(["one", "two", "three"])
STEPS = st.one_of(
    st.tuples(st.just("write"), PLACES, TEXTS),
    st.tuples(st.just("write"), PLACES, TEXTS),
    st.tuples(st.just("end"), PLACES),
    st.tuples(st.just("wait"), PLACES, st.integers(1, 9)),
    st.tuples(st.just("cancel"), PLACES, st.integers(0, 20_000)),
    st.tuples(st.just("pong"), st.integers()),
    st.tuples(st.just("take"), st.integers(1, 4)),
)


@given(st.lists(STEPS, max_size=60))
def test_every_conversation_arrives_in_order_and_whole(steps: list[tuple[Any, ...]]) -> None:
    outbox, reader = Outbox(max_bytes=1024), Reader()
    places = {name: Sent(name, outbox) for name in ("one", "two", "three")}
    for name, *rest in steps:
        if name == "take":
            reader.read(frame for _ in range(rest[0]) if (frame := outbox.take_nowait()) is not None)
        elif name == "pong":
            outbox.put_nowait(Pong(t=rest[0]))
        else:
            getattr(places[rest[0]], name)(*rest[1:])
    for place in places.values():
        place.end()
    reader.read(drained(outbox))

    assert reader.text == {turn: text for place in places.values() for turn, text in place.kept.items()}
    assert {name: place.seq for name, place in places.items() if place.seq} == reader.seq
    assert (outbox.statistics().frames, outbox.statistics().bytes) == (0, 0)


@given(st.lists(st.sampled_from(["delta", "pong", "cancelled", "deleted"]), max_size=12))
def test_cancelled_overtakes_deltas_and_nothing_else(kinds: list[str]) -> None:
    outbox = Outbox(max_bytes=1024)
    for number, kind in enumerate(kinds):
        frames: dict[str, Frame] = {
            "delta": delta("x", seq=number, off=0, turn_id=f"t{number}", place=f"c{number}"),
            "pong": Pong(t=number),
            "cancelled": Cancelled(ref=str(number), turn_id=None, already=True),
            "deleted": Deleted(conversation_id=str(number)),
        }
        outbox.put_nowait(frames[kind])
    got = drained(outbox)
    assert [frame for frame in got if isinstance(frame, Delta)] == [
        delta("x", seq=number, off=0, turn_id=f"t{number}", place=f"c{number}")
        for number, kind in enumerate(kinds)
        if kind == "delta"
    ]
    others = [kind for kind in kinds if kind != "delta"]
    assert [type(frame).__name__.lower() for frame in got if not isinstance(frame, Delta)] == others
    run = len(kinds)
    while run and kinds[run - 1] in ("delta", "cancelled"):
        run -= 1
    tail = [kind for kind in kinds[run:] if kind == "cancelled"]
    assert [type(frame) for frame in got[run : run + len(tail)]] == [Cancelled] * len(tail)


def test_a_cancelled_never_comes_before_the_accepted_of_its_turn() -> None:
    outbox = Outbox(max_bytes=1024)
    outbox.put_nowait(delta("text of another conversation", seq=9, off=0, turn_id="other", place="other"))
    outbox.put_nowait(accepted())
    outbox.put_nowait(Cancelled(turn_id="t", already=False))
    assert [type(frame) for frame in drained(outbox)] == [Delta, Accepted, Cancelled]


@given(st.lists(st.one_of(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), st.none()), max_size=30))
def test_of_a_turns_statuses_the_newest_waits(steps: list[tuple[str, int] | None]) -> None:
    """None: the reader takes a frame. It then has the newest word of that turn, and is told no older one later."""
    outbox, newest, known = Outbox(max_bytes=1024), dict[str, Status](), dict[str, Status]()
    for step in steps:
        if step is not None:
            newest[step[0]] = status(step[1], turn=step[0])
            outbox.put_nowait(newest[step[0]])
        elif isinstance(frame := outbox.take_nowait(), Status):
            assert frame is newest[frame.turn_id]
            known[frame.turn_id] = frame
    for frame in drained(outbox):
        assert isinstance(frame, Status)
        known[frame.turn_id] = frame
    assert known == newest
    assert (outbox.statistics().frames, outbox.statistics().bytes, outbox._statuses) == (0, 0, {})


def test_a_status_keeps_its_place_among_other_frames() -> None:
    outbox = Outbox(max_bytes=1024)
    frames: list[Frame] = [accepted(), status(2), Pong(t=1), status(1), delta("x", seq=2, off=0)]
    for frame in frames:
        outbox.put_nowait(frame)
    assert drained(outbox) == [frame for frame in frames if frame != status(2)]


def test_deltas_that_wait_become_one_of_64_kib_at_most() -> None:
    outbox = Outbox(max_bytes=1024)
    for seq, off in ((2, 0), (3, 1), (4, 2)):
        outbox.put_nowait(delta("x", off, seq=seq))
    assert outbox.statistics().merged == 2
    merged = msgspec.structs.replace(delta("xxx", seq=4), first_seq=2, tokens=3)
    assert drained(outbox) == [merged]
    half = "😀" * (MERGED_CHARS // 2)
    for number in range(5):
        outbox.put_nowait(delta(half, seq=2 + number, off=number * len(half)))
    sizes = [len(frame.text.encode()) for frame in drained(outbox) if isinstance(frame, Delta)]
    assert sizes == [64 * 1024, 64 * 1024, 32 * 1024]


def test_a_call_behind_a_cut_is_withdrawn_and_one_before_it_is_not() -> None:
    outbox = Outbox(max_bytes=1024)
    for frame in (
        delta("seen", seq=2),
        call("c1", seq=3, off=4),
        delta("unseen", 4, seq=4),
        call("c2", seq=5, off=10),
    ):
        outbox.put_nowait(frame)
    outbox.withdraw("t", 4, 0)
    assert [type(frame) for frame in drained(outbox)] == [Delta, ToolCall]
    assert outbox.statistics().bytes == 0


def test_the_size_counts_what_frames_hold() -> None:
    """A slow reader is bounded by bytes, whichever frames it does not read."""
    long = "x" * 10_000
    message = shown_message(long, role="user")
    row = Listed(conversation_id="c", title="x", updated_at=0, messages=1)
    many = msgspec.structs.replace(message, content="", siblings=["reply_" + "0" * 16] * 1000)
    for frame in (
        delta(long, seq=2, off=0),
        accepted(content=long),
        page(message),
        page(many),
        Snapshot(conversation_id="c", epoch="e", seq=1, text=long),
        Error(code="internal", message=long),
        ConversationsPage(conversations=[row] * 200),
    ):
        outbox = Outbox(max_bytes=10_000)
        outbox.put_nowait(frame)
        assert not outbox.is_over_limit, "one frame always fits"
        outbox.put_nowait(Pong(t=1))
        assert outbox.is_over_limit
        drained(outbox)
        assert outbox.statistics().bytes == 0


def test_short_deltas_alone_fill_it_in_the_end() -> None:
    outbox = Outbox(max_bytes=4 * MERGED_CHARS)
    for number in range(4 * MERGED_CHARS):
        outbox.put_nowait(delta("a", seq=number + 1, off=number))
        if outbox.is_over_limit:
            break
    assert outbox.is_over_limit
    assert outbox.statistics().bytes < 5 * MERGED_CHARS


ODD = (
    st.text(st.sampled_from('a \n\x01\x1f\x7f"\\é中\U0001f600\u2028'), max_size=40)
    | st.text(max_size=40)
    | st.builds(str.__mul__, st.sampled_from("a\n\x01é\U0001f600"), st.integers(40, 400))
)


@given(st.lists(ODD, min_size=1, max_size=200), ODD.map(lambda text: text[:20]))
def test_a_growing_text_counts_for_its_bytes_on_the_wire(parts: list[str], place: str) -> None:
    """Never for less, whatever is escaped; and for at most six times as much beside what strings take of themselves."""
    outbox, off = Outbox(max_bytes=1 << 30), 0
    outbox.put_nowait(Pong(t=1))
    outbox.take_nowait()
    for number, part in enumerate(parts):
        outbox.put_nowait(delta(part, seq=number + 1, off=off, place=place))
        off += len(part)
    size = outbox.statistics().bytes
    coded = sum(len(codec.encode(frame)) for frame in drained(outbox))
    assert coded <= size
    assert size <= 6 * coded + 64 * len(parts) + 1024
    assert outbox.statistics().bytes == 0
