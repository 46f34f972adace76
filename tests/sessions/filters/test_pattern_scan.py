"""Patterns find what `re` finds, whatever the pieces of the text, and hold back what may become a match alone."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sessions.filters.chain import Passed
from sessions.filters.list_filter import HoldbackFilter, PatternScan, PatternSet, UnsupportedPattern

ATOMS = st.sampled_from(
    ["a", "b", "ab", "A", "[a1]", "[^a]", ".", r"\w", r"\d", r"\s", "(?i:a)", "(?s:.)", "é", "(?-i:b)"]
)
PLACES = st.sampled_from([r"\b", r"\B", r"\A", "^", r"\Z", "(?m:^)", "(?m:$)"])
TEXTS = st.text("abAB1_ \né", min_size=1, max_size=12)


def composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.sampled_from(["?", "{2}", "{0,2}", "{1,3}?"])
    return (
        st.lists(inner, min_size=2, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda ways: f"({'|'.join(ways)})")
        | st.builds("(?:{}){}".format, inner, counts)
    )


PATTERNS = st.recursive(ATOMS | PLACES, composed, max_leaves=6)


def reader(*patterns: str, max_chars: int = 128) -> HoldbackFilter:
    return HoldbackFilter([PatternScan(PatternSet(patterns, max_chars=max_chars))])


def passed(held: HoldbackFilter, pieces: list[str]) -> Passed:
    """All that leaves of a reply."""
    parts = [held.feed(piece) for piece in pieces]
    parts.append(held.finish())
    return Passed("".join(part.text for part in parts), any(part.filtered for part in parts))


@given(patterns=st.lists(PATTERNS, min_size=1, max_size=2), pieces=st.lists(TEXTS, min_size=1, max_size=5))
def test_no_part_of_a_match_leaves_whatever_the_pieces(patterns: list[str], pieces: list[str]) -> None:
    try:
        held = reader(*patterns)
    except UnsupportedPattern:
        assume(False)
    text = "".join(pieces)
    matches = [start for one in patterns for start in range(len(text)) if re.compile(one).match(text, start)]
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


@pytest.mark.parametrize(
    ("pattern", "text", "left"),
    [
        (r"foo\b", "a foo bar", "a "),
        (r"\Bfoo", "foo xfoo", "foo x"),
        (r"(?m)^foo$", "a foo\nfoo\nb", "a foo\n"),
        (r"\Afoo", "foo", ""),
        (r"foo\Z", "foo foo", "foo "),
    ],
)
def test_assertions_look_at_both_sides(pattern: str, text: str, left: str) -> None:
    assert passed(reader(pattern), [text]) == Passed(left, filtered=True)


def test_what_comes_behind_a_match_is_not_read() -> None:
    held = reader("foo")
    assert held.feed("a foo bar") == Passed("a ", filtered=True)
    assert held.feed("bar") == Passed("", filtered=True)
    assert held.finish() == Passed("", filtered=True)


def test_what_leaves_ends_with_a_whole_character() -> None:
    """The second half of a flag begins a match; the first half alone would be another character."""
    assert reader("\U0001f1ea!").feed("Hi \U0001f1e9\U0001f1ea") == Passed("Hi ")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a+", "longer than 128 characters"),
        ("a{129}", "longer than 128 characters"),
        (".*x", "longer than 128 characters"),
        ("a?", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("(a", "not a regular expression"),
        ("(?L)a", "not a regular expression"),
        ("a{99999999999999999999}", "not a regular expression"),
        ("a(?=b)", r"Looking around, \(\?=…\)"),
        ("(?<!b)a", r"Looking around, \(\?!…\)"),
        ("(?>ab)", "An atomic group"),
        ("a?+b", "A possessive repeat"),
        (r"(a)\1", "A back reference"),
        ("(a)?b(?(1)c|d)", "A conditional group"),
        ("a$", r"write \\Z"),
        (r"(?a)\ba", "flag `a`"),
    ],
)
def test_a_pattern_that_can_not_be_bounded_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(UnsupportedPattern, match=why):
        reader(pattern)


def test_the_greatest_length_is_the_operators() -> None:
    with pytest.raises(UnsupportedPattern, match="longer than 3 characters"):
        reader("abcd", max_chars=3)
    assert reader("abc", max_chars=3).feed("abc").filtered


def test_an_automaton_that_would_be_too_large_is_refused() -> None:
    with pytest.raises(UnsupportedPattern, match="too large"):
        reader("(?:a?){300}b", max_chars=1024)


def test_repeats_within_repeats_take_no_more_time_than_the_text_is_long() -> None:
    """What takes a backtracking engine longer than the universe is old."""
    held = reader("(?:(?:a?){9}){4}" + "a{36}b", max_chars=73)
    began = process_time()
    assert not passed(held, ["a" * 300]).filtered
    assert process_time() - began < 5


def test_more_characters_than_are_remembered_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions.filters.list_filter.MOST_KNOWN", 4)
    assert passed(reader("[a-y]z"), ["abcdefghijklmnopq", "rz"]) == Passed("abcdefghijklmnopq", filtered=True)
