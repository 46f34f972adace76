"""What a client calls its request: taken where it is sound, and told in the log and to upstreams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Trace, trace_of_headers
from tests.engine.tiny_models import prepared_request

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_both_headers_are_taken() -> None:
    trace = trace_of_headers(
        [(b"host", b"x"), (b"x-request-id", b"req-7"), (b"traceparent", PARENT.encode())]
    )
    assert trace == Trace("req-7", PARENT)
    assert trace.facts == {"request_id": "req-7", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
    assert trace.headers == {"X-Request-Id": "req-7", "traceparent": PARENT}


@pytest.mark.parametrize(
    "parent",
    [
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        f"{PARENT}-more",
        PARENT.replace("00-", "ff-", 1),
        PARENT.upper(),
        "",
    ],
)
def test_a_parent_that_is_not_sound_is_left_out(parent: str) -> None:
    assert trace_of_headers([(b"traceparent", parent.encode())]) == Trace()


def test_a_newer_version_of_the_header_is_read_as_far_as_it_is_known() -> None:
    newer = PARENT.replace("00-", "01-", 1)
    assert trace_of_headers([(b"traceparent", f"{newer}-more".encode())]) == Trace(traceparent=newer)


@given(st.binary())
def test_no_header_puts_a_line_into_the_log(value: bytes) -> None:
    """Whatever comes: no line breaks, no spaces, and not much of it."""
    trace = trace_of_headers([(b"x-request-id", value), (b"traceparent", value)])
    reported = "".join(trace.facts.values())
    assert len(reported) <= 128 + 32
    assert reported.isascii()
    assert reported.isprintable()
    assert " " not in reported


def test_the_engines_log_names_a_request_as_its_client_does() -> None:
    assert prepared_request("turn_1", [1]).named == "turn_1"
    traced = replace(prepared_request("turn_1", [1]), trace=Trace("req-7", PARENT))
    assert traced.named == "turn_1 (request_id req-7, trace_id 4bf92f3577b34da6a3ce929d0e0e4736)"
