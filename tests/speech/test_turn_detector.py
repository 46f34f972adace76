"""From frames that are speech or not to when somebody began, paused and ended."""

from __future__ import annotations

import pytest

from speech.activity import LONGEST_MS, EndpointDetector, SpeechEvent, SpeechEventKind
from speech.clauses import LONGEST, Clauses

FRAME_MS = 30


def detector() -> EndpointDetector:
    return EndpointDetector(
        frame_ms=FRAME_MS, pause_ms=90, silence_ms=300, threshold=0.5, unfinished_ms=600, finished_ms=180
    )


def moments(frames: str) -> list[tuple[SpeechEventKind, int]]:
    """What happens where nobody can know what a sentence is; # is speech."""
    turns = detector()
    reported: list[SpeechEvent | None] = []
    for frame in frames:
        reported.append(turns.take(is_speech=frame == "#"))
        if reported[-1] is not None and reported[-1].kind is SpeechEventKind.PAUSED:
            assert turns.judge(is_whole=None) is None
    return [
        (one.kind, one.at_ms) for one in reported if one is not None and one.kind is not SpeechEventKind.GOING
    ]


def test_speech_begins_where_it_began_and_ends_with_its_last_sound() -> None:
    assert moments("." * 10 + "#" * 20 + "." * 10) == [
        (SpeechEventKind.STARTED, 300),
        (SpeechEventKind.PAUSED, 900),
        (SpeechEventKind.STOPPED, 900),
    ]


def test_clicks_are_no_speech_and_end_no_silence() -> None:
    assert moments("..#....#..#......") == []
    assert [kind for kind, _ in moments("#" * 10 + "...#...." * 2)] == [
        SpeechEventKind.STARTED,
        SpeechEventKind.PAUSED,
        SpeechEventKind.STOPPED,
    ]


def test_a_pause_that_was_no_end_is_told() -> None:
    kinds = [kind for kind, _ in moments("#" * 10 + "." * 6 + "#" * 5 + "." * 12)]
    assert kinds == [
        SpeechEventKind.STARTED,
        SpeechEventKind.PAUSED,
        SpeechEventKind.RESUMED,
        SpeechEventKind.PAUSED,
        SpeechEventKind.STOPPED,
    ]


@pytest.mark.parametrize("is_whole", [True, None])
def test_a_late_judgement_ends_at_once_what_was_silent_for_long_enough(
    is_whole: bool | None,  # noqa: FBT001 - as the cases name it
) -> None:
    turns = detector()
    reported = [turns.take(is_speech=frame == "#") for frame in "#" * 10 + "." * 11]
    assert [one.kind for one in reported if one is not None and one.kind is not SpeechEventKind.GOING] == [
        SpeechEventKind.STARTED,
        SpeechEventKind.PAUSED,
    ]
    assert turns.judge(is_whole=is_whole) == SpeechEvent(SpeechEventKind.STOPPED, 300, 0)
    assert not turns.is_speaking


def test_a_judgement_that_never_comes_ends_an_utterance_as_an_incomplete_one() -> None:
    turns = detector()
    reported = [turns.take(is_speech=frame == "#") for frame in "#" * 10 + "." * 20]
    assert reported[-1] == SpeechEvent(SpeechEventKind.STOPPED, 300, 0)


def test_speech_without_an_end_is_ended() -> None:
    ends = [at for kind, at in moments("#" * (2 * LONGEST_MS // FRAME_MS)) if kind is SpeechEventKind.STOPPED]
    assert ends[0] == LONGEST_MS


def test_clauses_are_told_once_they_are_whole_and_keep_their_offsets() -> None:
    text = "Hello there. My name is Midstream, and I count 1,000 things!\nAll" + " of them" * 60 + "x" * 600
    for size in (1, 3, 50):
        clauses = Clauses()
        reported = [one for at in range(0, len(text), size) for one in clauses.feed(text[at : at + size])]
        reported += clauses.finish()
        assert [one.text for one in reported[:2]] == [
            "Hello there.",
            " My name is Midstream, and I count 1,000 things!",
        ]
        assert all(text[one.off : one.end] == one.text and len(one.text) <= LONGEST for one in reported)
        assert "".join(one.text for one in reported).replace("\n", "") == text.replace("\n", "")
