"""A few spoken replies are cut as `python -m tests.chaos --only cuts` cuts a thousand."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.chaos import interruptions
from tests.chaos.interruptions import Cut, CutOptions
from tests.chaos.scenario import QUICK, Scenario


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
@pytest.mark.timeout(400)
def test_the_history_ends_at_the_word_that_was_heard(tmp_path: Path) -> None:
    """How soon the last sound came is a figure, and no fact on a busy machine."""
    found = interruptions.measure(Scenario(scale=QUICK, folder=tmp_path, seed=2, log=print))
    assert [f"{one.label}: {one.value} {one.note}" for one in found if not one.met and one.unit != "ms"] == []
    assert found[0].readings.keys() == set(CutOptions)


def test_a_word_too_many_and_a_step_too_many_are_found() -> None:
    good = Cut(
        how=CutOptions.CANCEL,
        wanted="Once upon",
        kept="Once upon",
        precision="word",
        steps_after=1,
        sound_ms=2,
    )
    bad = msgspec.structs.replace(good, kept="Once upon a", steps_after=2, sound_ms=50)
    assert all(one.met for one in interruptions._findings([good] * 8, []))
    met = [one.met for one in interruptions._findings([good] * 7 + [bad], [])]
    assert met == [False, False, False, False, True]
    assert [one.met for one in interruptions._findings([good, "1: TimeoutError"], ["failed"])][-1] is False
