"""The parts of the benchmark that take no time: its report, its table and picture, its parser of a stream."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.client import ClientEvent, Kind, ServerMisbehaved
from tests.bench.event_stream import EventStream
from tests.bench.idle_detection import IDLE_S, WINDOW_S, Sample, silent_from
from tests.bench.report import EndpointFigures, EndpointResults, Report, decode, encode
from tests.bench.servers import CONTENDERS, Contender, ServerLocation
from tests.bench.sse_client import greedy_config
from tests.bench.table import TIMES, cell, number, table

DEMO = Path(__file__).parents[2] / "demo_model" / "checkpoint"
STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant"},"index":0}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"1, "},"index":0}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"2"},"index":0}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"completion_tokens":5}}\n\n'
    b"data: [DONE]\n\n"
)


def test_a_report_survives_its_file(report: Report) -> None:
    assert decode(encode(report)) == report


def test_the_table_shows_medians_and_ratios_to_the_first_server(report: Report) -> None:
    shown = table(report)
    heading, rates, *_ = (line.split() for line in shown.splitlines())
    assert heading[:3] == ["1", "client", "Midstream"]
    assert rates[-3:] == ["300", "100", f"(0.33{TIMES})"]
    assert "n/a" in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12,346"), (99.96, "100"), (45.04, "45"), (7.128, "7.13"), (0, "0"), (0.3, "0.3")],
)
def test_numbers_keep_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_cell_without_a_figure_says_so_and_counts_of_steps_have_no_ratio() -> None:
    assert cell("silent_ms", None, 5) == "n/a"
    assert cell("steps_after", 2, 1) == "2"
    assert cell("silent_ms", 10, 5) == f"10 (2{TIMES})"


@given(st.lists(st.integers(0, len(STREAM))))
def test_an_event_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    stream = EventStream()
    received = [one for begin, end in pairwise(ends) for one in stream.feed(STREAM[begin:end])]
    assert received == [ClientEvent(Kind.TEXT), ClientEvent(Kind.TEXT), ClientEvent(Kind.END, 5)]


@pytest.mark.parametrize(
    ("usage", "tokens"), [(b'data: {"choices":[],"usage":{"completion_tokens":5}}\n\n', 5), (b"", 0)]
)
def test_a_stream_ends_once_wherever_its_tokens_are_told(usage: bytes, tokens: int) -> None:
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
    assert EventStream().feed(end + usage + b"data: [DONE]\n\n") == [ClientEvent(Kind.END, tokens)]


@pytest.mark.parametrize("error", ['"no more memory"', '{"message":"no more memory"}'])
def test_an_error_in_an_event_stream_is_raised(error: str) -> None:
    with pytest.raises(ServerMisbehaved, match="no more memory"):
        EventStream().feed(b'data: {"error": %b}\n\n' % error.encode())


def test_a_door_that_falls_short_of_the_native_one_says_so(report: Report) -> None:
    native = EndpointFigures(tokens_per_s=100, first_token_ms=10, tokens_share=1, first_token_share=1)
    other = EndpointFigures(tokens_per_s=80, first_token_ms=10, tokens_share=0.8, first_token_share=1)
    endpoints = EndpointResults(levels={8: {"websocket": native, "chat": other}})
    shown = table(msgspec.structs.replace(report, doors=endpoints))
    assert shown.count("short of") == 1
    assert not msgspec.structs.replace(
        report, turns=(), doors=EndpointResults(levels={}, failure="it ended")
    ).is_whole


def test_silence_begins_before_a_window_that_is_idle() -> None:
    busy = [Sample(at / 100, at / 100) for at in range(10)]
    idle = [Sample(0.1 + at / 100, 0.1 + IDLE_S / 50 * at) for at in range(40)]
    found = silent_from(busy + idle)
    assert found is not None
    assert found.at == pytest.approx(0.1, abs=0.011)


def test_no_silence_is_found_before_its_window_is_over() -> None:
    assert silent_from([Sample(0, 0), Sample(WINDOW_S / 2, 0)]) is None
    assert silent_from([Sample(at / 10, at / 10) for at in range(20)]) is None
    assert silent_from([]) is None


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_every_server_gets_the_same_model_device_and_dtype(contender: Contender) -> None:
    place = ServerLocation(port=1234, folder="/none", model="/the/model", device="cpu", dtype="float32")
    reported = " ".join([*contender.command(place), *contender.environment(place).values()])
    assert all(word in reported for word in ("1234", "/the/model", "cpu", "float32"))


def test_greedy_replies_keep_the_models_own_end_tokens() -> None:
    assert greedy_config(DEMO) == {
        "bos_token_id": 2346,
        "eos_token_id": 2347,
        "pad_token_id": 2348,
        "do_sample": False,
    }
