"""What a terminal says of a reply that has no text yet."""

from __future__ import annotations

import io

import pytest

from midstream import Status
from midstream.wait_line import WaitLine, words_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status("queued", queue_position=3), "Waiting, 2 before you"),
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
    assert words_for(status) == words


def test_the_line_changes_in_its_place_and_goes() -> None:
    terminal = Terminal()
    line = WaitLine(terminal)
    line.show(Status("queued", queue_position=2))
    line.show(Status("queued", queue_position=1))
    line.clear()
    line.clear()
    shown = [f"\r\033[K\033[2mWaiting, {who}\033[0m" for who in ("1 before you", "you are next")]
    assert terminal.getvalue() == "".join(shown) + "\r\033[K"


def test_a_file_gets_none_of_it() -> None:
    file = io.StringIO()
    line = WaitLine(file)
    line.show(Status("queued", queue_position=1))
    line.clear()
    assert file.getvalue() == ""
