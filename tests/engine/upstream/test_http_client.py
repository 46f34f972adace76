"""Server-sent events, vectors, and who may run: what comes of an upstream, however its bytes come."""

from __future__ import annotations

import asyncio
import json
import struct
from base64 import b64decode
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from engine.upstream.engine import InvalidVectors, encoded_as, read_vectors
from engine.upstream.http_client import ConcurrencyLimiter, EventReader, EventTooLong, ServerSentEvent
from engine.upstream.monitor import FAILURES, FIRST_OPEN_S, LONGEST_OPEN_S, Circuit
from tests.engine.tiny_models import Clock

LINES = st.sampled_from(
    [
        b"data: one",
        b"data:two",
        b"data",
        b"data:  spaced",
        b": comment",
        b"event: error",
        b"id: 7",
        b"",
        "data: 👩‍👩‍👧 é".encode(),
        b"data: \xff",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS)).map(lambda lines: b"".join(line + end for line, end in lines))


def read(*pieces: bytes) -> list[ServerSentEvent]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end()


@given(STREAMS, st.lists(st.integers(0, 400)))
def test_any_split_of_the_bytes_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[one:other] for one, other in pairwise(places)]
    assert read(*pieces) == read(*(stream[at : at + 1] for at in range(len(stream)))) == read(stream)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)))
def test_what_was_written_is_read(texts: list[str]) -> None:
    stream = "".join(f"data: {text}\n\n" for text in texts).encode()
    assert [event.data for event in read(stream)] == texts


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        (b"event: error\ndata: a\ndata: b\n\n", ServerSentEvent("a\nb", "error")),
        (b"data: [DONE]", ServerSentEvent("[DONE]")),
    ],
    ids=["lines are joined, with their kind", "no empty line at the end"],
)
def test_an_event_is_read(stream: bytes, event: ServerSentEvent) -> None:
    assert read(stream) == [event]


def test_an_event_without_end_is_refused_but_comments_may_come_for_ever() -> None:
    reader = EventReader(most_bytes=100)
    assert [reader.feed(b": still here\n") for _ in range(20)] == [[]] * 20
    assert reader.feed(b"data: 123456\n" * 5) == []
    with pytest.raises(EventTooLong):
        reader.feed(b"data: 123456\n" * 5)


class One(NamedTuple):
    arrival: int
    client: str = "ann"
    priority: int = 0


async def turn() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_who_leaves_the_queue_in_the_moment_of_its_turn_holds_no_place(*, leaves_first: bool) -> None:
    places, inside = ConcurrencyLimiter[One](1, lambda *_: None), list[int]()

    async def enter(one: One) -> None:
        await places.enter(one)
        inside.append(one.arrival)

    tasks = [asyncio.create_task(enter(One(arrival))) for arrival in range(3)]
    await turn()
    acts = [tasks[1].cancel, lambda: places.leave(One(0))]
    for act in acts if leaves_first else reversed(acts):
        act()
    await turn()
    assert (inside, places.running, places.waiting) == ([0, 2], 1, 0)


singles = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8)


@given(singles)
def test_a_packed_vector_has_the_same_numbers(numbers: list[float]) -> None:
    packed = encoded_as(Raw(json.dumps(numbers).encode()), packed=True)
    assert list(struct.unpack(f"<{len(numbers)}f", b64decode(json.loads(bytes(packed))))) == numbers


def test_a_vector_of_the_form_that_is_wanted_is_not_touched() -> None:
    assert bytes(encoded_as(Raw(b"[0.10, 1e-3]"), packed=False)) == b"[0.10, 1e-3]"


def answer(*vectors: object) -> bytes:
    return json.dumps({"data": [{"index": i, "embedding": one} for i, one in enumerate(vectors)]}).encode()


@pytest.mark.parametrize(
    ("body", "packed"),
    [
        (b"<html>", False),
        (b'{"data": 3}', False),
        (b'{"x": ' + b"[" * 100_000, False),
        (answer([1.0]), False),
        (answer([1.0], [1.0], [1.0]), False),
        (answer([1.0], {"x": 1}), False),
        (answer([1.0], ["x"]), True),
        (answer([1.0], ["x"]), False),
        (answer([1.0], "AACAPw=="), True),
        (answer([1.0], [1e300]), True),
        (answer([1.0], "?"), False),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}', False),
    ],
)
async def test_what_is_no_answer_for_two_texts_is_none(body: bytes, *, packed: bool) -> None:
    with pytest.raises(InvalidVectors):
        await read_vectors(body, 2, packed=packed)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuit(clock: Clock) -> Circuit:
    return Circuit(clock, lambda: 1.0)


def call_through(circuit: Circuit, *, fails: bool) -> None:
    circuit.begin()
    if fails:
        circuit.failed()
    else:
        circuit.answered()
        circuit.succeeded()


def opened(circuit: Circuit) -> None:
    for _ in range(FAILURES):
        call_through(circuit, fails=True)


def test_failures_in_a_row_open_it(circuit: Circuit) -> None:
    for _ in range(FAILURES - 1):
        call_through(circuit, fails=True)
    assert circuit.admits
    call_through(circuit, fails=False)
    opened(circuit)
    assert (circuit.is_open, circuit.admits, circuit.left_s) == (True, False, FIRST_OPEN_S)
    circuit.failed()
    assert circuit.left_s == FIRST_OPEN_S, "what began before makes no pause longer"


def test_after_a_pause_one_request_tries_and_its_end_decides(circuit: Circuit, clock: Clock) -> None:
    opened(circuit)
    clock.now = FIRST_OPEN_S
    circuit.begin()
    assert (circuit.is_open, circuit.admits) == (True, False)
    circuit.withdrew()
    assert (circuit.is_open, circuit.admits) == (True, True), "it proved nothing"
    circuit.begin()
    circuit.answered()
    assert circuit.admits
    circuit.failed()
    assert (circuit.is_open, circuit.admits, circuit.left_s) == (True, False, 2 * FIRST_OPEN_S)
    clock.now += circuit.left_s
    call_through(circuit, fails=False)
    assert not circuit.is_open
    circuit.rest(9.0)
    circuit.rest(5.0)
    assert (circuit.admits, circuit.left_s) == (False, 9.0)
    clock.now += 9.0
    circuit.begin()
    assert not circuit.admits, "one tries after a rest that was asked for, too"
    circuit.succeeded()
    assert circuit.admits


def test_pauses_grow_to_a_limit_and_begin_anew_with_a_success(circuit: Circuit, clock: Clock) -> None:
    opened(circuit)
    pauses = []
    for _ in range(10):
        pauses.append(circuit.left_s)
        clock.now += circuit.left_s
        call_through(circuit, fails=True)
    assert pauses[:3] == [FIRST_OPEN_S, 2 * FIRST_OPEN_S, 4 * FIRST_OPEN_S]
    assert pauses[-1] == LONGEST_OPEN_S
    clock.now += LONGEST_OPEN_S
    call_through(circuit, fails=False)
    opened(circuit)
    assert circuit.left_s == FIRST_OPEN_S


@given(st.lists(st.sampled_from(["begin", "answered", "succeeded", "failed", "withdrew", "wait"])))
def test_it_never_stays_shut(story: list[str]) -> None:
    """Whatever happened, once everybody has ended and the longest pause has passed, a request may try."""
    clock = Clock()
    circuit = Circuit(clock, lambda: 0.5)
    for event in story:
        if event == "wait":
            clock.now += 1.0
        else:
            getattr(circuit, event)()
    circuit.withdrew()
    clock.now += LONGEST_OPEN_S
    assert circuit.admits
