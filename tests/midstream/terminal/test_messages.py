"""What the terminal says of replies and conversations."""

from __future__ import annotations

import pytest

from midstream import Status
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
        (Status("prefill", progress=0.667), "Reading, 66 %"),
        (Status("prefill"), "Reading"),
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
