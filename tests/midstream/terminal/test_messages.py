"""What the terminal says of replies, conversations and a start that fails."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from midstream import Disconnected, NotConnected, Status
from midstream.terminal.session import error_message
from midstream.terminal.texts import (
    ago,
    end_text,
    facts,
    kept_up_to,
    offered_tools,
    quoted,
    requested_model,
    status_text,
)

MINUTE = 60_000


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status("queued", queue_position=3), "2 ahead of you"),
        (Status("queued", queue_position=1), "Waiting, you are next"),
        (Status("queued"), "Waiting"),
        (Status("prefill", progress=0.667), ""),
        (Status("retrying"), "Trying again"),
        (Status("fallback"), "Trying elsewhere"),
        (Status("unsaved"), ""),
    ],
)
def test_words_are_those_of_the_page(status: Status, words: str) -> None:
    assert status_text(status) == words


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (-5, "just now"),
        (0.5, "just now"),
        (1, "1 minute ago"),
        (59, "59 minutes ago"),
        (60, "1 hour ago"),
        (24 * 60 * 2, "2 days ago"),
    ],
)
def test_times_are_told_in_their_largest_unit(minutes: float, words: str) -> None:
    assert ago(10**12, 10**12 + minutes * MINUTE) == words


def test_a_title_is_one_bounded_line_that_steers_nothing() -> None:
    assert quoted(" About\n trees\x1b[31m ") == "“About trees\\x1b[31m”"
    assert quoted("x" * 100) == f"“{'x' * 60}…”"


def test_a_reply_that_is_not_whole_is_told_with_what_may_be_done() -> None:
    assert end_text("stop") == ""
    assert end_text("cancelled") == "[stopped; /continue resumes it]"
    assert end_text("of a later server") == "[of a later server]"
    assert kept_up_to("Much text, and its end.") == "[kept up to “Much text, and its end.”]"
    assert kept_up_to("") == "[nothing was kept]"


def test_counts_agree_with_their_nouns() -> None:
    rows = [{"messages": count, "updated_at": 0} for count in (0, 1, 2)]
    assert [facts(row, 0) for row in rows] == [
        "0 messages, just now",
        "1 message, just now",
        "2 messages, just now",
    ]


def test_tools_are_offered_to_the_model_that_is_asked_next_by_whatever_name() -> None:
    """Where another one stood in for it, the next message asks it again."""
    calls = {"name": "big", "aliases": ["best"], "features": ["tools"]}
    ready = {"model": "small", "models": [{"name": "small"}, calls], "tools": [{"name": "pay"}]}
    requested = requested_model({"model": "small", "requested_model": "big"})
    names = (requested, requested_model({"model": "small"}), "best", None)
    assert [bool(offered_tools(ready, name)) for name in names] == [True, False, True, False]


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (
            "ws://127.0.0.1:1/v1/ws",
            REFUSED,
            "Nothing listens at 127.0.0.1:1; start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`.",
        ),
        ("ws://chat.example/v1/ws", REFUSED, "Nothing listens at chat.example; is the service running?"),
        (
            "ws://localhost:1/v1/ws",
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] …"),
            "Nothing listens at localhost:1; start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`.",
        ),
        ("ws://no.example/v1/ws", socket.gaierror(-2, "?"), "Unknown host: no.example."),
        (
            "wss://a.example/v1/ws",
            ssl.SSLError("bad"),
            "a.example can't be reached by TLS: ('bad',). If it has no TLS, write ws://a.example.",
        ),
        ("ws://a.example/v1/ws", TimeoutError(), "a.example does not answer."),
        ("ws://a.example/v1/ws", Disconnected(1013, "Full."), "a.example: disconnected (1013): Full."),
        ("ws://a.example/v1/ws", OSError(5, "Broken"), "a.example: [Errno 5] Broken"),
        (
            "ws://a.example/x",
            NotConnected("HTTP 404"),
            "ws://a.example/x is not a chat service, or denied access: HTTP 404",
        ),
    ],
)
def test_a_service_that_is_not_reached_is_told_in_a_sentence(url: str, error: OSError, message: str) -> None:
    assert error_message(url, error) == message
