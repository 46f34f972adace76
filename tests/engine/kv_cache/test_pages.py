"""Pages are conserved, and whoever reads finds what was written for it; the longest known beginning of a prompt is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kv_cache import SHARED_SALT, SHORTEST, BlockTable, Match, PagePool, PrefixCache

TOTAL = 12


def joined(pool: PagePool, tokens: int) -> BlockTable:
    table = BlockTable()
    assert pool.extend(table, 0, tokens)
    return table


def beside(pool: PagePool, table: BlockTable) -> BlockTable:
    """A second request that begins with all pages of a first one."""
    table.writable = 0
    return pool.join(table.pages)


def test_where_there_is_no_page_for_a_copy_the_cache_gives_up_its_own() -> None:
    pool = PagePool(2, 4)
    table = joined(pool, 6)
    pool.keep(table.pages[1])
    table.writable = 0
    assert pool.extend(table, 6, 7)
    pool.release(table)
    assert (pool.copies, pool.cached, pool.free) == ([], 0, 2)


def test_what_was_let_go_first_is_taken_first() -> None:
    pool = PagePool(2, 4)
    first, second = joined(pool, 4), joined(pool, 4)
    old, new = first.pages[0], second.pages[0]
    for page in (old, new):
        pool.keep(page)
    pool.release(first)
    pool.release(second)
    taken = joined(pool, 4)
    assert taken.pages[0] == old
    assert pool.join([new]).pages[0] == new


def test_pages_that_nobody_holds_are_joined_by_nobody() -> None:
    pool = PagePool(2, 4)
    with pytest.raises(ValueError, match="held by nobody"):
        pool.join([1])
    with pytest.raises(ValueError, match="held by nobody"):
        pool.keep(1)


def test_a_leak_is_reported() -> None:
    pool = PagePool(4, 4)
    joined(pool, 4)
    with pytest.raises(RuntimeError, match="1 of 4 used"):
        pool.check_idle()


@dataclass(eq=False)
class Holder:
    """A request: its tokens, and the table that should hold them."""

    salt: str
    shared: int
    tokens: list[int]
    table: BlockTable


WORDS = st.lists(st.integers(0, 1), max_size=24)


class Pages(RuleBasedStateMachine):
    """Requests join, extend, share, are cancelled, preempted and kept. Memory is played: a list a page."""

    @initialize(size=st.sampled_from((1, 3, 4, 16, 256)))
    def begin(self, size: int) -> None:
        self.holders: list[Holder] = []
        self.size = size
        self.pool = PagePool(TOTAL, size)
        self.prefixes = PrefixCache(self.pool)
        self.memory: list[list[Any]] = [[None] * size for _ in range(TOTAL)]

    def written(self, table: BlockTable, count: int) -> list[Any]:
        return [self.memory[table.pages[place // self.size]][place % self.size] for place in range(count)]

    def write(self, holder: Holder, start: int) -> None:
        """What a step does: copies first, in order, then the writes."""
        for source, target in self.pool.copies:
            self.memory[target] = list(self.memory[source])
        self.pool.copies.clear()
        for place in range(start, len(holder.tokens)):
            self.memory[holder.table.pages[place // self.size]][place % self.size] = holder.tokens[place]

    def picked(self, number: int) -> Holder:
        return self.holders[number % len(self.holders)]

    @rule(salt=st.sampled_from("ab"), beginning=st.sampled_from((0, 20)), words=WORDS, last=st.integers(0, 1))
    def join(self, salt: str, beginning: int, words: list[int], last: int) -> None:
        tokens = [7] * beginning + words + [last]
        match = self.prefixes.find(salt, tokens, shared=beginning)
        assert match.tokens < len(tokens)
        table = self.pool.join(match.pages)
        assert self.written(table, match.tokens) == tokens[: match.tokens]
        if not self.pool.extend(table, match.tokens, len(tokens)):
            self.pool.release(table)
            return
        holder = Holder(salt, beginning, tokens, table)
        self.write(holder, match.tokens)
        self.holders.append(holder)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 50), words=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def extend(self, number: int, words: list[int]) -> None:
        holder = self.picked(number)
        start = len(holder.tokens)
        if self.pool.extend(holder.table, start, start + len(words)):
            holder.tokens = holder.tokens + words
            self.write(holder, start)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 50))
    def begin_alike(self, number: int) -> None:
        holder = self.picked(number)
        table = beside(self.pool, holder.table)
        self.holders.append(Holder(holder.salt, holder.shared, holder.tokens, table))

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        holder = self.picked(number)
        self.holders.remove(holder)
        self.pool.release(holder.table)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 50))
    def preempt(self, number: int) -> None:
        """Or end: what was computed stays in the cache."""
        holder = self.picked(number)
        self.prefixes.insert(holder.salt, holder.tokens, holder.table.pages, shared=holder.shared)
        self.holders.remove(holder)
        self.pool.release(holder.table)

    @precondition(lambda self: self.holders)
    @rule(number=st.integers(0, 50))
    def share(self, number: int) -> None:
        holder = self.picked(number)
        shared = min(holder.shared, len(holder.tokens))
        self.prefixes.insert(SHARED_SALT, holder.tokens[:shared], holder.table.pages, shared=shared)
        holder.table.writable = 0

    @rule()
    def evict(self) -> None:
        """A request takes all that can be had, and leaves."""
        greedy = BlockTable()
        assert self.pool.extend(greedy, 0, self.pool.available * self.size)
        for page in greedy.pages:
            self.memory[page] = ["overwritten"] * self.size
        self.pool.release(greedy)
        assert self.pool.cached == 0

    @invariant()
    def pages_are_conserved(self) -> None:
        held = {page for holder in self.holders for page in holder.table.pages}
        assert self.pool.used == len(held)
        assert self.pool.free + self.pool.used + self.pool.cached == TOTAL
        assert min(self.pool.free, self.pool.cached) >= 0
        if not self.holders:
            self.pool.check_idle()

    @invariant()
    def everyone_reads_what_was_written(self) -> None:
        for holder in self.holders:
            assert self.written(holder.table, len(holder.tokens)) == holder.tokens

    @invariant()
    def what_is_found_is_right(self) -> None:
        for salt in "ab":
            for tokens in ([7] * 20 + [0] * 5, [0] * 25, [1, 0] * 12):
                match = self.prefixes.find(salt, tokens, shared=20 if tokens[0] == 7 else 0)
                table = self.pool.join(match.pages)
                assert self.written(table, match.tokens) == tokens[: match.tokens]
                self.pool.release(table)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


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
    kept = (one for one in sequences if len(one) >= SHORTEST)
    return max((n for one in kept for n in range(len(prompt)) if one[:n] == prompt[:n]), default=0)


@given(sizes, st.lists(tokens, max_size=6), tokens)
def test_the_longest_match_is_found_whatever_else_is_kept(
    page: int, sequences: list[list[int]], prompt: list[int]
) -> None:
    longest = longest_common_prefix(sequences, prompt)
    assert prefix_cache_of(page, *sequences).find("a", prompt).tokens == (
        longest if longest >= SHORTEST else 0
    )


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
