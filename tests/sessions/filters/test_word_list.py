"""Listed words are found however they are spelled, as whole words, and nothing else is held back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.filters.chain import Passed
from sessions.filters.list_filter import HoldbackFilter, WordList, WordScan


def reader(*words: str) -> HoldbackFilter:
    return HoldbackFilter([WordScan(WordList(words))])


def passed(held: HoldbackFilter, pieces: list[str]) -> Passed:
    """All that leaves of a reply."""
    parts = [held.feed(piece) for piece in pieces]
    parts.append(held.finish())
    return Passed("".join(part.text for part in parts), any(part.filtered for part in parts))


@given(
    words=st.lists(st.text("abC", min_size=1, max_size=4), min_size=1, max_size=3),
    pieces=st.lists(st.text("abcAB_1 .", max_size=6), max_size=6),
)
def test_no_part_of_a_word_leaves_whatever_the_pieces(words: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    matches = [found.start() for word in words for found in re.finditer(rf"(?i)\b{word}\b", text)]
    outcome = passed(reader(*words), pieces)
    assert outcome.filtered == bool(matches)
    assert outcome.text == text[: min(matches, default=len(text))]


@given(pieces=st.lists(st.sampled_from(["cat", "s", " ", "\u200d", "e\u0301", "ﬁ", "🇩🇪", "猫", "C", "a"])))
def test_whole_characters_in_any_pieces_pass_the_same(pieces: list[str]) -> None:
    words = ("cat", "cats eá", "猫", "fi")
    assert passed(reader(*words), pieces) == passed(reader(*words), ["".join(pieces)])


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("darn", "Oh DARN!"),
        ("darn", "darn"),
        ("darn", "(darn)"),
        ("darn", "darn-it"),
        ("darn", "the darn's"),
        ("darn", "\uff44\uff41\uff52\uff4e it"),
        ("darn", "\U0001d41d\U0001d41a\U0001d42b\U0001d427 it"),
        ("darn", "d\u200ba\u200cr\u200dn it"),
        ("darn", "da\u00adrn\ufeff it"),
        ("file", "a ﬁle"),
        ("straße", "STRASSE"),
        ("café", "a cafe\u0301."),
        ("cafe\u0301", "a café."),
        ("two words", "two \n\u00a0 words"),
        (" two  words ", "two words"),
        ("c++", "I like C++."),
        ("猫", "黒猫です"),
        ("すし", "うまいすしだ"),
        ("แมว", "มีแมวดำ"),
        ("👍", "Well 👍🏽 done"),
    ],
)
def test_a_word_is_found(word: str, text: str) -> None:
    assert passed(reader(word), list(text)).filtered


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("darn", "darning undarned un_darn darn2"),
        ("darn", "da rn"),
        ("cafe", "cafe\u0301 café"),
        ("すし", "すじ"),
        ("two words", "twowords"),
        ("darn", "d\u0430rn"),
    ],
)
def test_another_word_is_none(word: str, text: str) -> None:
    assert passed(reader(word), list(text)) == Passed(text)


def test_only_what_may_become_a_word_waits() -> None:
    held = reader("darn", "two words")
    assert held.feed("I da").text == "I "
    assert held.feed("re two ").text == "dare "
    assert held.feed("times").text == "two times"
    assert held.feed(" darn").text == " "
    assert held.feed("ing").text == "darning"


def test_no_words_hold_nothing_back() -> None:
    assert reader().feed("anything") == Passed("anything")


@pytest.mark.parametrize("word", ["", "  ", "\u200b"])
def test_a_word_of_nothing_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="nothing to see"):
        WordList([word])
