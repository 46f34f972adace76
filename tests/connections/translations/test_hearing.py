"""What is heard becomes a text that is never revised."""

from __future__ import annotations

import pytest

from connections.translations.hearing import Transcript
from connections.translations.speaking import voice_for
from speech.contract import Heard, Partly, Paused, Resumed, Started, Stopped


@pytest.mark.parametrize(
    ("heard", "text"),
    [
        (
            [Started(0), Partly(1, "good"), Partly(2, "good morning"), Stopped(0, 3, "good morning")],
            "good morning\n",
        ),
        (
            [Started(0), Partly(1, "could"), Partly(2, "good morning"), Stopped(0, 3, "good morning")],
            "good morning\n",
        ),
        (
            [Started(0), Partly(1, "one two"), Paused(2, "one two"), Resumed(3), Stopped(0, 4, "one two")],
            "one two \n",
        ),
        (
            [Started(0), Partly(1, "one two"), Partly(2, "one two"), Stopped(0, 4, "other words three")],
            "one two three\n",
        ),
        ([Started(0), Stopped(0, 1, "")], ""),
        ([Stopped(0, 1, "one"), Started(2), Stopped(2, 3, "two")], "one\ntwo\n"),
    ],
)
def test_words_are_told_once_and_what_is_said_between_silences_is_a_line(
    heard: list[Heard], text: str
) -> None:
    transcript = Transcript()
    assert "".join(transcript.take(one) for one in heard) == text


@pytest.mark.parametrize(
    ("language", "voice"),
    [("en", "en-us"), ("en-GB", "en-us"), ("zh", "cmn"), ("zh-Hant", "cmn"), ("xx", None)],
)
def test_a_voice_is_found_by_the_language(language: str, voice: str | None) -> None:
    assert voice_for(("en-us", "en-gb", "cmn", "de"), language) == voice
