"""The sound of one speaker: when it is understood, in which pieces, and what is forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from speech.interfaces import Heard, Listening, Partial, Paused, Started, Stopped
from speech.listening_worker import MUTED_S, PIECE_MS, SpeechStream
from speech.recognition import Utterance
from speech.samples import Samples
from tests.speech.voice_samples import RATE, silence, voiced


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Words:
    """Understands how long something is, and keeps what it was asked."""

    def __init__(self, *, is_whole: bool | None = None) -> None:
        self.pieces: list[Samples] = []
        self.is_whole = is_whole

    def __call__(self, samples: Samples) -> Utterance:
        self.pieces.append(samples)
        return Utterance(str(len(samples) * 1000 // RATE), is_whole=self.is_whole)


def listening(**options: Any) -> Listening:
    return Listening(rate=RATE, **options)


SENTENCES = listening(silence_ms=300, unfinished_ms=1200, finished_ms=210, pause_ms=60)


def recognized(stream: SpeechStream, *sounds: bytes) -> list[Heard]:
    """Feed sounds one after another; return what is heard."""
    received: list[Heard] = []
    for sound in sounds:
        stream.feed(sound)
        received += recognized(stream)
    while stream.has_work:
        if (event := stream.step()) is not None:
            received.append(event)
    return received


def test_who_sends_no_more_sound_in_the_middle_of_a_word_has_stopped() -> None:
    clock = Clock()
    stream = SpeechStream(listening(), Words(), clock=clock)
    stream.feed(silence(300) + voiced(900))
    assert isinstance(recognized(stream)[0], Started)
    clock.now = 0.5 + MUTED_S
    stream.expire()
    assert recognized(stream) == []  # a network may hold sound up for so long
    clock.now += 0.01
    stream.expire()
    (stopped,) = recognized(stream)
    assert isinstance(stopped, Stopped)
    assert (stopped.at_ms, stopped.is_committed) == (1200, False)
    stream.expire()
    assert not stream.has_work


def test_a_long_utterance_is_understood_in_pieces_that_lose_nothing() -> None:
    words = Words()
    stream = SpeechStream(listening(detects=False), words)
    noise = np.random.default_rng(0).normal(0, 3000, RATE * 30).astype("<i2")
    stream.feed(noise.tobytes())
    stream.commit()
    (stopped,) = recognized(stream)
    assert isinstance(stopped, Stopped)
    assert len(words.pieces) >= 30_000 // PIECE_MS
    assert max(len(piece) for piece in words.pieces) <= RATE * PIECE_MS // 1000
    assert np.array_equal(np.concatenate(words.pieces), noise)
    assert stopped.text == " ".join(str(len(piece) * 1000 // RATE) for piece in words.pieces)


def test_words_of_a_piece_without_a_voice_do_not_count() -> None:
    stream = SpeechStream(listening(), lambda _: Utterance("no"))
    noise = np.random.default_rng(0).normal(0, 3000, RATE * 30).astype("<i2")
    stream.feed(noise.tobytes())
    stream.commit()
    assert {one.text for one in recognized(stream) if isinstance(one, Partial | Stopped)} == {""}


def test_words_of_pieces_stay_where_speech_goes_on() -> None:
    words = Words()
    stream = SpeechStream(listening(), words)
    received = recognized(stream, *[voiced(300)] * 40, silence(900))
    last = received[-1]
    assert isinstance(last, Stopped)
    first = next(text for one in received if isinstance(one, Partial) and " " in (text := one.text)).split()[
        0
    ]
    assert last.text.split()[0] == first
    assert max(len(piece) for piece in words.pieces) <= RATE * PIECE_MS // 1000


def test_sound_counts_as_waiting_until_it_is_understood() -> None:
    stream = SpeechStream(listening(), Words())
    stream.feed(silence(300))
    assert stream.taken() == len(silence(300))
    for _ in range(30):
        stream.feed(voiced(100))
    before = stream.taken()
    assert before < len(voiced(500))
    recognized(stream)
    assert before + stream.taken() == len(voiced(100)) * 30


def test_what_was_committed_outlasts_that_all_is_forgotten() -> None:
    words = Words()
    stream = SpeechStream(listening(detects=False), words)
    stream.feed(voiced(600))
    stream.commit()
    stream.feed(voiced(900))
    stream.clear()
    stream.feed(voiced(300))
    stream.commit()
    assert [one.text for one in recognized(stream) if isinstance(one, Stopped)] == ["600", "300"]
    assert stream.taken() == len(voiced(1800))


def test_what_was_heard_and_not_committed_is_forgotten() -> None:
    stream = SpeechStream(listening(), Words())
    stream.feed(silence(300) + voiced(900) + silence(600))
    assert stream.has_work
    stream.clear()
    assert recognized(stream) == []
    stream.commit()
    assert recognized(stream) == [Stopped(1800, 1800, "", is_committed=True)]


@pytest.mark.parametrize(("is_whole", "silence_ms"), [(True, 120), (None, 300), (False, 750)])
def test_how_long_an_end_is_waited_for_is_a_question_of_the_sentence(
    is_whole: bool | None,  # noqa: FBT001 - as the cases name it
    silence_ms: int,
) -> None:
    options = listening(silence_ms=300, unfinished_ms=750, finished_ms=120, pause_ms=60)
    stream = SpeechStream(options, Words(is_whole=is_whole))
    received = recognized(stream, silence(300) + voiced(900))
    quiet_ms = 0
    while not isinstance(received[-1], Stopped):
        quiet_ms += 30
        received += recognized(stream, silence(30))
    pauses = 2 if is_whole is False else 1  # an incomplete sentence is understood once more
    assert [one.is_whole for one in received if isinstance(one, Paused)] == [is_whole is not False] * pauses
    assert silence_ms <= quiet_ms <= silence_ms + 150  # the detector notices silence late


def test_a_last_sound_that_is_too_soft_for_the_detector_is_understood_all_the_same() -> None:
    """As the end of "six" in noise: the sentence is whole with it, and does not wait for more."""
    whole_ms = 1400

    def understand(samples: Samples) -> Utterance:
        ms = len(samples) * 1000 // RATE
        return Utterance("count to 56" if ms >= whole_ms else "count to 50", is_whole=ms >= whole_ms)

    stream = SpeechStream(SENTENCES, understand)
    received = recognized(stream, silence(300) + voiced(900), *[silence(30)] * 15)
    assert [(one.text, one.is_whole) for one in received if isinstance(one, Paused)] == [
        ("count to 50", False),
        ("count to 56", True),
    ]
    assert isinstance(received[-1], Stopped)
    assert received[-1].text == "count to 56"


def test_a_pause_inside_a_sentence_ends_none_because_its_words_are_known_late() -> None:
    """Where all cores are busy, the pause is over before anybody knows that the sentence is not."""

    def understand(samples: Samples) -> Utterance:
        is_whole = len(samples) * 1000 // RATE >= 1800
        return Utterance("what is 5 plus 6" if is_whole else "", is_whole=is_whole)

    stream = SpeechStream(SENTENCES, understand)
    sound = silence(300) + voiced(900) + silence(600) + voiced(600) + silence(900)
    stopped = [one for one in recognized(stream, sound) if isinstance(one, Stopped)]
    assert [one.text for one in stopped] == ["what is 5 plus 6"]


@pytest.mark.parametrize("is_whole", [True, None])
def test_sentences_with_a_pause_between_them_stay_two_where_the_first_is_understood_late(
    is_whole: bool | None,  # noqa: FBT001 - as the cases name it
) -> None:
    sound = silence(300) + voiced(900) + silence(600) + voiced(600) + silence(2000)
    late = SpeechStream(SENTENCES, Words(is_whole=is_whole))
    late.feed(sound)
    prompt = SpeechStream(SENTENCES, Words(is_whole=is_whole))
    received = recognized(prompt, *(sound[start : start + 960] for start in range(0, len(sound), 960)))

    def ends(events: list[Heard]) -> list[tuple[int, int]]:
        return [(one.started_ms, one.at_ms) for one in events if isinstance(one, Stopped)]

    def starts(events: list[Heard]) -> list[int]:
        return [one.at_ms for one in events if isinstance(one, Started)]

    events = recognized(late)
    assert len(starts(events)) == 2
    for mine, promptly in zip(
        (*starts(events), *sum(ends(events), ())), (*starts(received), *sum(ends(received), ())), strict=True
    ):
        assert abs(mine - promptly) <= 60
    texts = [int(one.text) for one in events if isinstance(one, Stopped)]
    assert max(texts) <= 1500  # neither has the other's sound


def test_more_silence_takes_no_words_of_an_incomplete_sentence() -> None:
    """The recognizer may find no end of the grammar any more, and understand nothing then."""
    heard_once: list[str] = []

    def understand(_: Samples) -> Utterance:
        heard_once.append("count to")
        return Utterance("count to" if len(heard_once) == 1 else "", is_whole=False)

    stream = SpeechStream(SENTENCES, understand)
    recognized(stream, silence(300) + voiced(300))
    heard_once.clear()
    received = recognized(stream, *[silence(30)] * 60)
    assert [one.text for one in received if isinstance(one, Paused | Stopped)] == ["count to"] * 3


def test_words_are_new_once_they_are_recognized_anew() -> None:
    words = Words()
    stream = SpeechStream(listening(), words)
    received = recognized(stream, *[voiced(60)] * 30)
    partly = [one for one in received if isinstance(one, Partial)]
    assert 0 < sum(one.is_new for one in partly) == len(words.pieces) < len(partly)


def test_a_word_that_goes_on_softly_behind_a_pause_is_understood_at_the_end() -> None:
    """Nothing was understood at the pause, and nobody knows whether that was a sentence."""
    whole_ms = 1600
    stream = SpeechStream(
        listening(), lambda samples: Utterance("go on" if len(samples) * 1000 // RATE >= whole_ms else "")
    )
    received = recognized(stream, silence(300) + voiced(900))
    while not isinstance(received[-1], Stopped):
        received += recognized(stream, silence(30))
    assert [one.text for one in received if isinstance(one, Paused | Stopped)] == ["", "go on"]
