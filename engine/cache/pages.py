"""Pages of keys and values: which are free, and who holds the others. Pure: numbers, no tensors.

A page is held by any number of requests, and by the cache of prefixes. `free + used + cached == total` always: used pages
are held by a request, cached ones by the cache alone. A page that has another holder is copied before it is written.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Copy(NamedTuple):
    """What a page holds is to be copied to another one before the next step."""

    source: int
    target: int


class BlockTable:
    """The pages of one request, in the order of its tokens. Changed by the pool alone.

    `writable`: positions below it, from the last one that was extended on, lie in pages that nobody else holds.
    """

    __slots__ = ("pages", "writable")

    def __init__(self, pages: Iterable[int] = ()) -> None:
        self.pages = array("i", pages)
        self.writable = 0


class PagePool:
    """`total` pages of `size` tokens each. `copies` are due before the next step, in order; whoever makes them clears them.

    Pages that the cache alone holds are taken when no other is free, the one that was let go first before the others.
    """

    def __init__(self, total: int, size: int) -> None:
        self.total = total
        self.size = size
        self.copies: list[Copy] = []
        self.changes = 0
        """Counts what may have made room."""
        self.evict: Callable[[int], None] = self.forget
        """Is told of a page that the cache has to give up, and must `forget` it."""
        self._holders = array("i", bytes(4 * total))
        self._kept = bytearray(total)
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that the cache alone holds."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Pages that requests hold."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Pages that a request can have."""
        return len(self._free) + len(self._cached)

    def pages_for(self, tokens: int) -> int:
        """Return how many pages so many tokens take."""
        return -(-tokens // self.size)

    def join(self, pages: Iterable[int]) -> BlockTable:
        """Return the table of a request that goes on from pages which are held already."""
        table = BlockTable(pages)
        for page in table.pages:
            if not self._holders[page] and not self._kept[page]:
                raise ValueError(f"page {page} is held by nobody")
            self._cached.pop(page, None)
            self._holders[page] += 1
        return table

    def branch(self, table: BlockTable) -> BlockTable:
        """Return a second table of the same pages: whoever writes first copies."""
        table.writable = 0
        return self.join(table.pages)

    def extend(self, table: BlockTable, start: int, stop: int) -> bool:
        """See that the positions from `start` to `stop` can be written. False: there is too little room, and nothing changed."""
        if stop <= table.writable:
            return True
        pages, first = table.pages, start // self.size
        missing = max(0, self.pages_for(stop) - len(pages))
        shared = sum(self._holders[page] > 1 for page in pages[first:])
        spare = self.available - missing - shared
        if spare < 0:
            return False
        for place in range(first, len(pages)):
            if self._holders[pages[place]] > 1 or (self._kept[pages[place]] and spare > 0):
                pages[place] = self._copied(pages[place])
            elif self._kept[pages[place]]:  # no room for a copy: the cache gives up its own
                self.evict(pages[place])
        pages.extend(self._taken() for _ in range(missing))
        table.writable = len(pages) * self.size
        return True

    def cut(self, table: BlockTable, length: int) -> None:
        """Let go what lies behind the first `length` tokens. What is left may be others' as well."""
        keep = self.pages_for(length)
        self._let_go(table.pages[keep:])
        del table.pages[keep:]
        table.writable = 0

    def release(self, table: BlockTable) -> None:
        """Let go all pages of a table. The last ones are taken first where the cache holds them."""
        self.cut(table, 0)

    def keep(self, page: int) -> None:
        """Let the cache hold a page that a request holds."""
        if not self._holders[page]:
            raise ValueError(f"page {page} is held by nobody")
        self._kept[page] = True

    def forget(self, page: int) -> None:
        """Take a page from the cache."""
        self._kept[page] = False
        if not self._holders[page]:
            del self._cached[page]
            self._free.append(page)
            self.changes += 1

    def is_kept(self, page: int) -> bool:
        """Whether the cache holds a page."""
        return bool(self._kept[page])

    def check_idle(self) -> None:
        """Raise RuntimeError where a page is held though nothing runs: a leak, which must not go unseen."""
        if self.used or any(self._holders) or sum(self._kept) != self.cached:
            raise RuntimeError(
                f"pages are held by nobody: {self.used} of {self.total} used, {self.cached} cached"
            )

    def _taken(self) -> int:
        if not self._free:
            self.evict(next(iter(self._cached)))
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _copied(self, source: int) -> int:
        target = self._taken()
        self.copies.append(Copy(source, target))
        self._let_go((source,))
        return target

    def _let_go(self, pages: Iterable[int]) -> None:
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if self._kept[page]:
                self._cached[page] = None
            else:
                self._free.append(page)
        self.changes += 1
