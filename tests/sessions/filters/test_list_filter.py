"""Lists of words and patterns, and the table that has them.

Words are found however they are spelled, as whole words. Patterns find what `re` finds, whatever the pieces of the text. Nothing
but what may become a match is held back.
"""

from __future__ import annotations

import re
import tomllib
from itertools import count
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sessions.errors import Filtered
from sessions.filters import list_filter
from sessions.filters.chain import Filter, Filters, Passed, ReleasedText, ReplyFilter
from sessions.filters.list_filter import (
    TIMEOUT_S,
    InvalidFilters,
    PatternSet,
    UnsupportedPattern,
    WordList,
    filters_from,
)

HERE = "tests.sessions.filters.test_list_filter"
ATOMS = st.sampled_from(
    ["a", "b", "ab", "A", "[a1]", "[^a]", ".", r"\w", r"\d", r"\s", "(?i:a)", "(?s:.)", "é", "(?-i:b)"]
)
PLACES = st.sampled_from([r"\b", r"\B", r"\A", "^", "$", r"\Z"])
TEXTS = st.text("abAB1_ \né", min_size=1, max_size=12)


def composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["?", "{2}", "{0,2}", "{1,3}?", "*", "+"])
    return (
        st.lists(inner, min_size=2, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda ways: f"({'|'.join(ways)})")
        | st.builds("(?:{}){}".format, inner, counts)
    )


PATTERNS = st.recursive(ATOMS | PLACES, composed, max_leaves=6)


def words_reader(*words: str) -> ReplyFilter:
    return WordList(words).begin()


def reader(*patterns: str, max_chars: int = 128) -> ReplyFilter:
    return PatternSet(patterns, max_chars=max_chars).begin()


def passed(held: ReplyFilter, pieces: list[str]) -> Passed:
    """All that leaves of a reply."""
    parts = [held.feed(piece) for piece in pieces]
    parts.append(held.finish())
    return Passed("".join(part.text for part in parts), any(part.filtered for part in parts))


# ---- words


@given(
    words=st.lists(st.text("abC", min_size=1, max_size=4), min_size=1, max_size=3),
    pieces=st.lists(st.text("abcAB_1 .", max_size=6), max_size=6),
)
def test_no_part_of_a_word_leaves_whatever_the_pieces(words: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    matches = [found.start() for word in words for found in re.finditer(rf"(?i)\b{word}\b", text)]
    outcome = passed(words_reader(*words), pieces)
    assert outcome.filtered == bool(matches)
    assert outcome.text == text[: min(matches, default=len(text))]


@given(pieces=st.lists(st.sampled_from(["cat", "s", " ", "\u200d", "e\u0301", "ﬁ", "🇩🇪", "猫", "C", "a"])))
def test_whole_characters_in_any_pieces_pass_the_same(pieces: list[str]) -> None:
    words = ("cat", "cats eá", "猫", "fi")
    assert passed(words_reader(*words), pieces) == passed(words_reader(*words), ["".join(pieces)])


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
    assert passed(words_reader(word), list(text)).filtered


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
    assert passed(words_reader(word), list(text)) == Passed(text)


def test_only_what_may_become_a_word_waits() -> None:
    held = words_reader("darn", "two words")
    pieces = ("I da", "re two ", "times", " darn", "ing")
    assert [held.feed(piece).text for piece in pieces] == ["I ", "dare ", "two times", " ", "darning"]
    assert words_reader().feed("anything") == Passed("anything")


@pytest.mark.parametrize("word", ["", "  ", "\u200b"])
def test_a_word_of_nothing_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="nothing to see"):
        WordList([word])


# ---- patterns


@given(patterns=st.lists(PATTERNS, min_size=1, max_size=2), pieces=st.lists(TEXTS, min_size=1, max_size=5))
def test_no_part_of_a_match_leaves_whatever_the_pieces(patterns: list[str], pieces: list[str]) -> None:
    try:
        held = reader(*patterns)
    except UnsupportedPattern:
        assume(False)
    text = "".join(pieces)
    matches = [
        start
        for one in patterns
        for start in range(len(text))
        if (found := re.compile(one, re.MULTILINE).match(text, start)) and found[0]
    ]
    outcome = passed(held, pieces)
    assert outcome.filtered == bool(matches)
    assert text.startswith(outcome.text)
    assert len(outcome.text) <= min(matches) if matches else outcome.text == text
    assert outcome == passed(reader(*patterns), [text]) == passed(reader(*patterns), list(text))


@given(word=st.text("ab", min_size=1, max_size=5), text=TEXTS)
def test_only_what_may_become_a_match_waits(word: str, text: str) -> None:
    assume(word not in text)
    waits = max(length for length in range(len(word)) if text.endswith(word[:length]))
    assert reader(word).feed(text).text == text[: len(text) - waits]


def test_a_match_inside_a_longer_one_drops_the_beginning_of_the_longer_one_too() -> None:
    assert passed(reader("abcdef", "cd"), ["xab", "cdef"]) == Passed("x", filtered=True)


def test_a_match_that_needs_a_boundary_waits_for_the_next_character() -> None:
    held = reader(r"\bfoo\b")
    assert held.feed("a foo") == Passed("a ")
    assert held.feed("d foo") == Passed("food ")
    assert held.finish() == Passed("", filtered=True)


def test_what_comes_behind_a_match_is_not_read_and_what_leaves_ends_with_a_whole_character() -> None:
    """The second half of a flag begins a match; the first half alone would be another character."""
    held = reader("foo")
    assert held.feed("a foo bar") == Passed("a ", filtered=True)
    assert held.feed("bar") == held.finish() == Passed("", filtered=True)
    assert reader("\U0001f1ea!").feed("Hi \U0001f1e9\U0001f1ea") == Passed("Hi ")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a?", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("(a", "not a regular expression"),
        ("a(?=b)", "Looking around"),
        ("(?<!b)a", "Looking around"),
    ],
)
def test_a_pattern_that_can_not_be_used_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(UnsupportedPattern, match=why):
        reader(pattern)


def test_the_greatest_length_is_the_operators() -> None:
    """Of a match, and of the text that waits for one."""
    assert passed(reader("a.*b", max_chars=5), list("a1234b a123b")) == Passed("a1234b ", filtered=True)
    held = reader("a.*b", max_chars=5)
    assert len(held.feed("a" * 100).text) == 94


def test_a_search_that_takes_too_long_ends_the_reply() -> None:
    """A backtracking engine could take longer than the universe is old, and many short searches longer than a reply."""
    assert passed(reader("(?:a|aa|aaa)+b"), ["a" * 300]).filtered


def test_the_searches_of_a_piece_take_a_bounded_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A match makes one search for each character: the clock stands for how long they take."""
    searches = count()
    monkeypatch.setattr(list_filter, "process_time", lambda: next(searches) * TIMEOUT_S / 20)
    assert passed(reader("(?:a|aa)+b"), [("a" * 9 + "c") * 20 + "ab"]) == Passed("", filtered=True)
    assert next(searches) < 40


# ---- the table


class NoQuestions(Filter):
    """An operator's own."""

    async def refuses(self, message: str) -> bool:
        return message.endswith("?")


def broken() -> Filter:
    raise LookupError("no licence")


def no_filter() -> str:
    return "no filter"


def filters_in(text: str) -> Filters:
    return filters_from(tomllib.loads(text))


async def test_lists_and_hooks_of_a_table_are_used() -> None:
    filters = filters_in(
        f"""
        max_chars = 9
        hooks = ["{HERE}:NoQuestions"]
        [input]
        words = ["darn"]
        [output]
        patterns = ['\\d{{4}}-\\d{{4}}']
        """
    )
    await filters.check("All is well.")
    for message in ("Darn.", "Is it?"):
        with pytest.raises(Filtered):
            await filters.check(message)
    assert filters.reply().feed("Darn 1234-5678", 1) == ReleasedText("Darn ", 1, filtered=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("input = 1", "Expected `object`"),
        ("[inputs]", "unknown field `inputs`"),
        ("[input]\nword = []", "unknown field `word`.*input"),
        ("[input]\nwords = [1]", r"Expected `str`.*input\.words"),
        ("max_chars = 0", r">= 1.*max_chars"),
        ("[input]\nwords = ['a', '']", r"input\.words\[1\] '': There is nothing"),
        ("[output]\npatterns = ['a', 'b*']", r"output\.patterns\[1\] 'b\*': It matches the empty text"),
        ("hooks = ['nowhere.at_all:make']", "'nowhere.at_all:make' fails: ModuleNotFoundError"),
        ("hooks = ['no colon']", "'no colon' fails"),
        (f"hooks = ['{HERE}:missing']", "fails: AttributeError"),
        (f"hooks = ['{HERE}:broken']", "fails: LookupError: no licence"),
        (f"hooks = ['{HERE}:no_filter']", "makes a str, which is not a Filter"),
    ],
)
def test_a_table_that_can_not_be_used_is_told_by_its_place(text: str, why: str) -> None:
    with pytest.raises(InvalidFilters, match=rf"(?s){why}"):
        filters_in(text)


async def test_the_example_does_what_it_says() -> None:
    example = Path(__file__).parents[3] / "deploy" / "midstream.toml"
    filters = filters_from(tomllib.loads(example.read_text(encoding="utf-8"))["filters"])
    await filters.check("Numbers like 1234 5678 are fine.")
    for message in ("1234-5678-1234-5678", "An  EXAMPLE phrase!"):
        with pytest.raises(Filtered):
            await filters.check(message)
    reply = filters.reply()
    assert reply.feed("My key is sk-" + "a" * 20 + ".", 1) == ReleasedText("My key is ", 1, filtered=True)
