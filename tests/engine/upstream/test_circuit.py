"""A circuit opens after failures in a row, tries with one request, and closes once that was answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.upstream.monitor import FAILURES, FIRST_OPEN_S, LONGEST_OPEN_S, Circuit
from tests.engine.tiny_models import Clock


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
