"""The checkpoint that comes with the repository: its size, and what it translates."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from demo_translator.evaluate import ENOUGH, evaluate, probes
from demo_translator.model import CHECKPOINT
from demo_translator.prefixes import cuts, units
from demo_translator.sentences import SKILLS
from demo_translator.simultaneous import _hypothesis, follow
from demo_translator.tokenizer import CHINESE, ENGLISH
from sessions.interpreting.interpretation import agreed_end

LARGEST_BYTES = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return AutoModelForSeq2SeqLM.from_pretrained(CHECKPOINT, dtype="auto"), AutoTokenizer.from_pretrained(
        CHECKPOINT
    )


def test_it_is_small() -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= LARGEST_BYTES


@pytest.mark.parametrize("target", [CHINESE, ENGLISH])
def test_most_of_what_it_never_saw_is_right(loaded: tuple[Any, Any], target: str) -> None:
    requested = [pair for skill in SKILLS for pair in probes(skill, 10, seed=1)]
    score = evaluate(*loaded, requested, "all", target)
    assert score.rate >= ENOUGH, score.wrong


def test_while_a_sentence_grows_words_are_counted_as_early_that_the_service_would_tell(
    loaded: tuple[Any, Any],
) -> None:
    pairs = [pair for skill in SKILLS for pair in probes(skill, 1, seed=1)]
    early = [emitted_early(loaded, pair.english) for pair in pairs]
    assert follow(*loaded, pairs, CHINESE).early == sum(map(len, map(units, early)))
    assert any(early)


def emitted_early(loaded: tuple[Any, Any], source: str) -> str:
    reported, before = "", list[str]()
    for place in cuts(source):
        now = _hypothesis(*loaded, source[:place], CHINESE, reported, unfinished=True)
        reported = now[: agreed_end(before, now, len(reported), finished=True)]
        before.append(now)
    return reported
