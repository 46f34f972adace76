"""The longest known beginning of a prompt is found, whatever else is kept."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine.cache.prefix_index import BLOCK, Match, PrefixIndex, common_prefix

tokens = st.lists(st.integers(0, 2), max_size=5 * BLOCK)


def kept(*sequences: list[int]) -> PrefixIndex:
    index = PrefixIndex()
    for key, sequence in enumerate(sequences):
        index.add(key, "a", array("q", sequence))
    return index


@given(tokens, tokens)
def test_a_common_beginning_is_counted_to_the_token(first: list[int], second: list[int]) -> None:
    pairs = list(zip(first, second, strict=False))
    expected = next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
    assert common_prefix(array("q", first), array("q", second)) == expected


@given(st.lists(tokens, max_size=6), tokens)
def test_the_longest_match_is_found_whatever_else_is_kept(
    sequences: list[list[int]], prompt: list[int]
) -> None:
    wanted = array("q", prompt)
    longest = max((common_prefix(array("q", one), wanted) for one in sequences), default=0)
    found = kept(*sequences).find("a", prompt)
    assert (found.tokens if found else 0) == (longest if longest >= BLOCK else 0)


@given(st.lists(st.tuples(tokens, st.booleans()), max_size=6), tokens)
def test_what_is_removed_is_not_found_and_all_else_still_is(
    sequences: list[tuple[list[int], bool]], prompt: list[int]
) -> None:
    index = kept(*(sequence for sequence, _ in sequences))
    for key, (sequence, stays) in enumerate(sequences):
        if not stays:
            assert list(index.remove(key)) == sequence
    assert len(index) == sum(stays for _, stays in sequences)
    left = kept(*(sequence for sequence, stays in sequences if stays)).find("a", prompt)
    found = index.find("a", prompt)
    assert (found.tokens if found else 0) == (left.tokens if left else 0)


def test_another_salt_finds_nothing() -> None:
    index = kept(list(range(64)))
    assert index.find("b", list(range(64))) is None
    assert index.find("a", list(range(64))) == Match(0, 64)


def test_less_than_a_block_is_not_worth_finding() -> None:
    assert kept(list(range(64))).find("a", list(range(BLOCK - 1))) is None
