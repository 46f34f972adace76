"""What a source determines that was cut off: what is sure, and no more."""

from __future__ import annotations

import random

import pytest

from demo_model.holdout import Split
from demo_translator.pairs import Pair, sentence
from demo_translator.prefixes import cuts, determined, source_prefix

ENGLISH, CHINESE = 0, 1


@pytest.mark.parametrize(
    ("cut", "source", "sure"),
    [
        ("My", ENGLISH, "我"),
        ("My name is", ENGLISH, "我叫"),
        ("What is", ENGLISH, ""),
        ("Thank you", ENGLISH, ""),
        ("I have four hundred", ENGLISH, "我有四百"),
        ("I have four hundred and twelve", ENGLISH, "我有四百一十二"),
        ("It is sunny in", ENGLISH, ""),
        ("It is sunny in San", ENGLISH, "旧金山"),
        ("Do you know Robin", ENGLISH, "你认识Robin吗"),
        ("我叫", CHINESE, ""),
        ("我叫Robin", CHINESE, "My name is Robin"),
        ("我有四百一", CHINESE, "I have four hundred and"),
        ("No sentence", ENGLISH, ""),
    ],
)
def test_a_beginning_determines_what_all_its_sentences_have_in_common(
    cut: str, source: int, sure: str
) -> None:
    assert determined(cut, source) == sure


def test_a_sentence_is_cut_behind_words_and_behind_chinese_characters() -> None:
    assert [("Hello, Ann!")[:place] for place in cuts("Hello, Ann!")] == ["Hello", "Hello,", "Hello, Ann"]
    assert [("我叫Ann。")[:place] for place in cuts("我叫Ann。")] == ["我", "我叫", "我叫Ann"]


@pytest.mark.parametrize("source", [ENGLISH, CHINESE])
def test_what_is_sure_grows_with_the_source_and_never_contradicts_the_whole(source: int) -> None:
    rng = random.Random(19)
    for _ in range(300):
        pair = sentence(rng, Split.HELD_OUT)
        sure = ""
        for place in cuts(pair[source]):
            now = determined(pair[source][:place], source)
            assert now.startswith(sure), pair
            assert pair[1 - source].startswith(now), pair
            sure = now


def test_a_pair_is_cut_on_the_side_that_is_asked() -> None:
    rng = random.Random(1)
    whole = Pair("I like tea.", "我喜欢茶。")
    assert {source_prefix(rng, whole, CHINESE) for _ in range(50)} == {
        Pair("", "我"),
        Pair("I like", "我喜"),
        Pair("I like", "我喜欢"),
        Pair("I like tea", "我喜欢茶"),
    }
