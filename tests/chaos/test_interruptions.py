"""A few spoken replies are cut as `python -m tests.chaos --only cuts` cuts a thousand."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.chaos.interruptions import WAYS, Cut, findings, measure
from tests.chaos.scenario import QUICK, Scenario


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
@pytest.mark.timeout(400)
def test_the_history_ends_at_the_word_that_was_heard(tmp_path: Path) -> None:
    found = measure(Scenario(scale=QUICK, folder=tmp_path, seed=2, log=print))
    assert [f"{one.label}: {one.value} {one.note}" for one in found if not one.met] == []
    assert found[0].readings.keys() == set(WAYS)


def test_a_word_too_many_and_a_step_too_many_are_found() -> None:
    good = Cut(how="cancel", wanted="Once upon", kept="Once upon", precision="word", steps_after=1)
    bad = msgspec.structs.replace(good, kept="Once upon a", steps_after=2)
    assert [one.met for one in findings([good], [])] == [True, True, True]
    assert [one.met for one in findings([good, bad, "1: TimeoutError"], [])] == [False, False, False]
