"""Which text was heard, whatever the player does."""

from __future__ import annotations

import random

from connections.spoken_reply import AHEAD_MS, Timeline
from speech.interfaces import Mark

RATE = 8000


def clause(words: random.Random, off: int) -> tuple[bytes, int, tuple[Mark, ...]]:
    """Some words with pauses between them; sound of that length."""
    marks, at, here = [], words.randint(0, 80), 0
    for _ in range(words.randint(1, 12)):
        letters, lasts = words.randint(1, 9), words.randint(40, 700)
        marks.append(Mark(off=here, len=letters, start_ms=at, end_ms=at + lasts))
        here, at = here + letters + 1, at + lasts + words.choice((0, 6, 250))
    return bytes(2 * (RATE * at // 1000 + words.randint(1, 3000))), here, tuple(marks)


def test_cuts_are_at_the_word_that_was_heard() -> None:
    """The player drifts, tells late and unevenly; the server knows no more than it is told."""
    for seed in range(300):
        chance = random.Random(seed)
        timeline, reported, off = Timeline(rate=RATE), list[Mark](), 0
        for _ in range(chance.randint(1, 6)):
            sound, chars, marks = clause(chance, off)
            reported += timeline.add(sound, off=off, chars=chars, marks=marks)
            off += chars
        cut_ms, heard_ms, got = chance.uniform(0, timeline.synthesized_ms), 0, 0
        while heard_ms < cut_ms:
            got += len(timeline.take(40))
            arrived_ms = got * 1000 // (2 * RATE)
            assert arrived_ms <= timeline.played_ms + AHEAD_MS
            if chance.random() < 0.7:
                continue
            heard_ms = min(arrived_ms, heard_ms + int(chance.uniform(0.98, 1.02) * chance.randint(20, 300)))
            timeline.played(heard_ms)
        timeline.played(chance.randint(0, heard_ms))  # an older word that comes late
        ends = [mark.off + mark.len for mark in reported if mark.end_ms <= heard_ms]
        assert timeline.heard == (ends[-1] if ends else 0), seed
        assert timeline.precision == "word"


def test_nothing_is_heard_that_was_not_sent() -> None:
    timeline = Timeline(rate=RATE)
    timeline.add(bytes(2 * RATE), off=0, chars=5, marks=(Mark(off=0, len=5, start_ms=0, end_ms=900),))
    timeline.played(5000)
    assert (timeline.played_ms, timeline.heard) == (0, 0)
    while timeline.take(40):
        pass
    timeline.played(5000)
    assert (timeline.played_ms, timeline.heard) == (AHEAD_MS, 0)


def test_a_voice_without_times_is_cut_at_a_clause_and_says_so() -> None:
    timeline = Timeline(rate=RATE)
    for off in (0, 10):
        timeline.add(bytes(RATE), off=off, chars=10, marks=None)
    assert (timeline.heard, timeline.precision) == (0, "chunk")
    for ms in (300, 700):
        while timeline.take(40):
            pass
        timeline.played(ms)
    assert (timeline.heard, timeline.precision) == (10, "chunk")


def test_who_comes_back_gets_the_sound_from_what_was_played() -> None:
    timeline = Timeline(rate=RATE)
    timeline.add(bytes(range(250)) * 64, off=0, chars=1, marks=())
    first = b"".join(iter(lambda: timeline.take(40), b""))
    timeline.played(100)
    timeline.rewind()
    again = timeline.take(40)
    assert again == first[1600:][: len(again)]
    assert timeline.sent_ms == 140
