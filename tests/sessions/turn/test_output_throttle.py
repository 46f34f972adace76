"""Text that is let out at a reader's pace is all of the text, evenly, and a stop waits for nothing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.filters.chain import ReleasedText
from sessions.generation import OutputThrottle, parts_of

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
THUMB = "\U0001f44d\U0001f3fd"
FLAG = "\U0001f1e8\U0001f1ed"
ACCENT = "e\u0301"


@given(st.text(max_size=200), st.integers(1, 20), st.integers(0, 50))
def test_the_parts_are_the_text_and_its_tokens(text: str, chars: int, tokens: int) -> None:
    parts = list(parts_of(ReleasedText(text, tokens), chars))
    assert "".join(part.text for part in parts) == text
    assert sum(part.tokens for part in parts) == (tokens if text else 0)
    assert all(part.text for part in parts)


@given(st.lists(st.sampled_from([FAMILY, THUMB, ACCENT, "a", " "]), max_size=30), st.integers(1, 9))
def test_no_character_is_torn(characters: list[str], chars: int) -> None:
    ends = {0}
    for character in characters:
        ends.add(max(ends) + len(character))
    place = 0
    for part in parts_of(ReleasedText("".join(characters), 1), chars):
        place += len(part.text)
        assert place in ends


class RecordingReader:
    """Receives parts, at the times of a clock that goes on as it waits."""

    def __init__(self) -> None:
        self.received: list[tuple[float, str]] = []
        self.has_received = asyncio.Event()

    async def receive(self, released: ReleasedText) -> None:
        self.received.append((asyncio.get_running_loop().time(), released.text))
        self.has_received.set()


async def test_parts_come_evenly_however_fast_they_are_made() -> None:
    reader = RecordingReader()
    clock = asyncio.get_running_loop().time
    pacer = OutputThrottle(chars_per_s=200, stopping=asyncio.Event(), clock=clock)
    began = clock()
    await pacer.release(reader.receive, ReleasedText("x" * 60, 9))
    await pacer.release(reader.receive, ReleasedText("y" * 20, 3))
    assert "".join(text for _, text in reader.received) == "x" * 60 + "y" * 20
    for place, (at, _) in enumerate(reader.received):
        assert at - began >= place * 20 / 200 - 0.01  # never early; a busy machine may be late


async def test_a_stop_waits_for_nothing() -> None:
    reader = RecordingReader()
    stopping = asyncio.Event()
    pacer = OutputThrottle(chars_per_s=0.01, stopping=stopping)
    releasing = asyncio.create_task(pacer.release(reader.receive, ReleasedText("ab", 2)))
    await reader.has_received.wait()
    stopping.set()
    await asyncio.wait_for(releasing, 10)
    assert [text for _, text in reader.received] == ["a"]


def test_a_stop_in_the_middle_counts_what_was_told() -> None:
    """Tokens go with their text, as far as anybody can tell."""
    reported = list(parts_of(ReleasedText("word " * 200, 250), 3))
    half = reported[: len(reported) // 2]
    assert sum(part.tokens for part in half) == pytest.approx(125, abs=2)
