"""The longest known beginning of a prompt is found, by page, and by whom it may be."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import SHARED_SALT, SHORTEST, BlockTable, Match, PagePool, PrefixCache

tokens = st.lists(st.integers(0, 2), max_size=5 * SHORTEST)
sizes = st.sampled_from((1, 4, 16, 64, 256))


def run(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def prefix_cache_of(page: int, *sequences: list[int], salt: str = "a", shared: int = 0) -> PrefixCache:
    prefixes = PrefixCache(PagePool(2000, page))
    for sequence in sequences:
        keep(prefixes, sequence, salt, shared)
    return prefixes


def keep(prefixes: PrefixCache, sequence: list[int], salt: str = "a", shared: int = 0) -> list[int]:
    table = BlockTable()
    assert prefixes._pool.extend(table, 0, len(sequence))
    pages = list(table.pages)
    prefixes.insert(salt, sequence, pages, shared=shared)
    prefixes._pool.release(table)
    return pages


def longest_common_prefix(sequences: list[list[int]], prompt: list[int]) -> int:
    """How much of a prompt, but for its last token, one of these begins with."""
    return max(
        (
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, prompt[:-1], strict=False)))
            for one in sequences
            if len(one) >= SHORTEST
        ),
        default=0,
    )


@given(sizes, st.lists(tokens, max_size=6), tokens)
def test_the_longest_match_is_found_whatever_else_is_kept(
    page: int, sequences: list[list[int]], prompt: list[int]
) -> None:
    longest = longest_common_prefix(sequences, prompt)
    assert prefix_cache_of(page, *sequences).find("a", prompt).tokens == (
        longest if longest >= SHORTEST else 0
    )


@given(sizes, st.lists(tokens, min_size=1, max_size=6))
def test_all_that_is_cached_is_in_the_tree_and_goes_when_it_is_needed(
    page: int, sequences: list[list[int]]
) -> None:
    prefixes = prefix_cache_of(page, *sequences)
    pool = prefixes._pool
    assert len(prefixes) == pool.cached
    greedy = BlockTable()
    assert pool.extend(greedy, 0, pool.total * pool.size)
    assert (len(prefixes), pool.cached) == (0, 0)
    assert prefixes._root.children == {}


@pytest.mark.parametrize("page", [1, 16, 64])
def test_what_everyone_shares_is_found_by_whoever_shares_it_and_not_by_who_guesses(page: int) -> None:
    prefixes = prefix_cache_of(page, run(40), salt=SHARED_SALT, shared=40)
    assert prefixes.find("b", run(60), shared=40).tokens == 40
    assert prefixes.find("b", run(60), shared=30).tokens == 30
    assert prefixes.find("b", run(60)).tokens == 0


@pytest.mark.parametrize("page", [1, 16, 64])
def test_what_goes_on_from_what_is_shared_is_its_owner_s(page: int) -> None:
    prefixes = prefix_cache_of(page, run(40), salt=SHARED_SALT, shared=40)
    keep(prefixes, run(60), "a", shared=40)
    assert prefixes.find("a", run(70), shared=40).tokens == 60
    assert prefixes.find("b", run(70), shared=40).tokens == 40
    assert prefixes.find("b", run(70)).tokens == 0


def test_64_chats_hold_the_pages_of_one_system_prompt() -> None:
    prefixes, system = prefix_cache_of(64, run(1024), salt=SHARED_SALT, shared=1024), run(1024)
    for chat in range(64):
        match = prefixes.find(f"chat {chat}", [*system, 5000 + chat, 1], shared=1024)
        table = prefixes._pool.join(match.pages)
        assert prefixes._pool.extend(table, match.tokens, 1026)
    assert prefixes._pool.used == 16 + 64
    assert 16 / (64 * 16) <= 0.02


def test_a_beginning_that_goes_on_replaces_its_own_partial_page() -> None:
    prefixes = prefix_cache_of(16, run(20))
    keep(prefixes, run(30))
    assert (len(prefixes), prefixes._pool.cached) == (2, 2)


def test_what_is_known_is_not_kept_twice() -> None:
    prefixes = prefix_cache_of(16, run(40), run(40), run(35), run(32))
    assert len(prefixes) == prefixes._pool.cached == 3


def test_less_than_is_worth_finding_is_neither_kept_nor_found() -> None:
    assert len(prefix_cache_of(4, run(SHORTEST - 1))) == 0
    assert prefix_cache_of(4, run(64)).find("a", run(SHORTEST)) == Match((), 0)
    assert prefix_cache_of(4, run(64)).find("a", run(SHORTEST + 1)).tokens == SHORTEST


def test_the_last_pages_are_given_up_first() -> None:
    prefixes = prefix_cache_of(16, run(64))
    pool = prefixes._pool
    table = BlockTable()
    assert pool.extend(table, 0, (pool.total - 2) * 16)
    assert prefixes.find("a", run(65)).tokens == 32
