"""What a crowd says is drawn once, by its seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from midstream.bench.plan import MOST_PROMPT_BYTES, Plan, PlanError, prompts_of, script

PLAN = Plan(concurrency=1, turns=5, cancels=0.3, think_s=2.0)


def test_the_same_seed_says_the_same_and_another_one_something_else() -> None:
    scripts = [script(PLAN, number) for number in range(20)]
    assert scripts == [script(PLAN, number) for number in range(20)]
    assert scripts != [script(replace(PLAN, seed=2), number) for number in range(20)]


def test_so_many_replies_are_stopped_and_pauses_are_so_long_as_was_asked_for() -> None:
    messages = [one for number in range(1000) for one in script(PLAN, number)]
    assert sum(one.stop_after is not None for one in messages) / len(messages) == pytest.approx(0.3, abs=0.03)
    pauses = [one.pause_s for one in messages if one.pause_s]
    assert sum(pauses) / len(pauses) == pytest.approx(2.0, rel=0.1)


def test_prompts_are_the_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text("one\n\n  two \n")
    assert prompts_of(file) == ("one", "two")


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff", b"a" * (MOST_PROMPT_BYTES + 1)])
def test_a_file_without_prompts_is_told_by_its_name(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompts"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PlanError, match="prompts"):
        prompts_of(file)
