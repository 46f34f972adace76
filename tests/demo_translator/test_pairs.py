"""The language of the bundled translator: each side says the same, and has one translation."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from demo_model.holdout import Split, held_out
from demo_translator.evaluate import SEVERAL, probes
from demo_translator.numerals import LARGEST, chinese, chinese_quantity, english
from demo_translator.pairs import sentence, text
from demo_translator.sentences import SKILLS, WORDS
from demo_translator.tokenizer import CHINESE, ENGLISH, new_tokenizer

PAIRS = [pair for sentences in SKILLS.values() for pair in sentences]


def test_numbers_are_said_as_people_say_them() -> None:
    expected = {
        0: "零",
        2: "二",
        10: "十",
        12: "十二",
        20: "二十",
        105: "一百零五",
        110: "一百一十",
        112: "一百一十二",
        500: "五百",
    }
    assert {number: chinese(number) for number in expected} == expected
    assert (english(412), english(21), english(300)) == (
        "four hundred and twelve",
        "twenty-one",
        "three hundred",
    )
    assert (chinese_quantity(2), chinese_quantity(12)) == ("两", "十二")


@pytest.mark.parametrize("spelled", [english, chinese])
def test_no_two_numbers_are_said_alike(spelled: Callable[[int], str]) -> None:
    assert len({spelled(number) for number in range(LARGEST + 1)}) == LARGEST + 1


def test_each_sentence_and_each_word_has_one_translation() -> None:
    for pairs in (PAIRS, *(list(known.items()) for known in WORDS.values())):
        for side in (0, 1):
            assert len({pair[side] for pair in pairs}) == len(pairs)


def test_both_sides_of_a_sentence_have_the_same_holes() -> None:
    assert [pair for pair in PAIRS if sorted(_holes(pair[0])) != sorted(_holes(pair[1]))] == []


def _holes(side: str) -> list[str]:
    return re.findall(r"\{\w+\}", side)


def test_what_is_held_out_never_stands_in_the_training() -> None:
    rng = random.Random(3)
    trained = " ".join(sentence(rng, Split.TRAIN).english for _ in range(2_000))
    words = {*re.findall(r"[A-Z][a-z]+", trained)}
    assert {word for word in words if f"call {word}" in trained and held_out(f"name:{word}")} == set()
    numbers = {*map(int, re.findall(r"\d+", trained))}
    assert len(numbers) > 100
    assert {number for number in numbers if held_out(f"translated number:{number}")} == set()


def test_every_probe_has_something_that_the_training_never_sees() -> None:
    for skill in (*SKILLS, SEVERAL):
        requested = probes(skill, 30, seed=1)
        rng = random.Random(5)
        seen = {text(rng, Split.TRAIN) for _ in range(500)}
        assert seen.isdisjoint(requested)


def test_texts_come_out_of_the_tokenizer_as_they_went_in() -> None:
    tokenizer = new_tokenizer(0)
    rng = random.Random(7)
    for _ in range(300):
        for language, side in zip((ENGLISH, CHINESE), text(rng, Split.HELD_OUT), strict=True):
            tokenizer.src_lang = language
            ids = tokenizer(side).input_ids
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == side


def test_a_name_has_the_same_tokens_in_both_languages() -> None:
    tokenizer = new_tokenizer(0)
    inside, outside = (tokenizer.tokenize(side) for side in ("我叫Tiefloobie。", "My name is Tiefloobie."))
    assert inside[3:-1] == outside[outside.index("▁is") + 2 : -1]
