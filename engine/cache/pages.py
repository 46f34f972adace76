"""Pages of keys and values: which are free, and who holds the others. Pure: numbers, no tensors.

Any number of requests may hold a page, and so may the cache of prefixes. `free + used + cached == total` always: requests
hold the used pages, and only the cache holds the cached ones. A page with another holder is copied before it is written.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple


class PageCopy(NamedTuple):
    """The content of page `source` has to be copied to page `target` before the next step."""

    source: int
    target: int


class BlockTable:
    """The pages of one request, in the order of its tokens. Only the pool changes it.

    `writable`: nobody else holds the pages of the positions below it, from the start of the last `extend` on.
    """

    __slots__ = ("pages", "writable")

    def __init__(self, pages: Iterable[int] = ()) -> None:
        self.pages = array("i", pages)
        self.writable = 0


class PagePool:
    """`total` pages of `size` tokens each. `copies` are due before the next step, in order; their maker clears the list.

    If no page is free, one that only the cache holds is taken: the one that was released first.
    """

    def __init__(self, total: int, size: int) -> None:
        self.total = total
        self.size = size
        self.copies: list[PageCopy] = []
        self.changes = 0
        """Counts the events that may have made room."""
        self.evict: Callable[[int], None] = self.forget
        """Called with a page that the cache has to give up; it must `forget` the page."""
        self._holders = array("i", bytes(4 * total))
        self._kept = bytearray(total)
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, int] = OrderedDict()  # and the number of sweeps at its release
        self._sweeps = 0
        self._stale: set[int] = set()

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that only the cache holds."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Pages that requests hold."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Pages that a request can have."""
        return len(self._free) + len(self._cached)

    @property
    def stale(self) -> int:
        """Free pages that were written to, so that they take memory."""
        return len(self._stale)

    def pages_for(self, tokens: int) -> int:
        """Return how many pages `tokens` tokens take."""
        return -(-tokens // self.size)

    def join(self, pages: Iterable[int]) -> BlockTable:
        """Return the table of a request that begins with pages of others. Raises ValueError if nobody holds one of them."""
        table = BlockTable(pages)
        for page in table.pages:
            if not self._holders[page] and not self._kept[page]:
                raise ValueError(f"page {page} is held by nobody")
            self._cached.pop(page, None)
            self._holders[page] += 1
        return table

    def branch(self, table: BlockTable) -> BlockTable:
        """Return a second table of the same pages. Whoever writes to one first copies it."""
        table.writable = 0
        return self.join(table.pages)

    def extend(self, table: BlockTable, start: int, stop: int) -> bool:
        """Make the positions from `start` to `stop` writable. False if there is too little room; nothing changes then."""
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
        """Release the pages behind the first `length` tokens. Others may hold what is left, too."""
        keep = self.pages_for(length)
        self._let_go(table.pages[keep:])
        del table.pages[keep:]
        table.writable = 0

    def release(self, table: BlockTable) -> None:
        """Release all pages of a table. If the cache holds them, the last ones are reused first."""
        self.cut(table, 0)

    def keep(self, page: int) -> None:
        """Let the cache hold a page that a request holds. Raises ValueError if none does."""
        if not self._holders[page]:
            raise ValueError(f"page {page} is held by nobody")
        self._kept[page] = True

    def forget(self, page: int) -> None:
        """Take a page from the cache."""
        self._kept[page] = False
        if not self._holders[page]:
            del self._cached[page]
            self._set_free(page)
            self.changes += 1

    def is_kept(self, page: int) -> bool:
        """Whether the cache holds a page."""
        return bool(self._kept[page])

    def sweep(self) -> None:
        """Have the cache forget the pages that only it has held since the sweep before this one."""
        old = [page for page, sweeps in self._cached.items() if sweeps < self._sweeps]
        for page in old:
            if page in self._cached:  # it may have gone with the page that it continued
                self.evict(page)
        self._sweeps += 1

    def take_stale(self, most: int) -> list[int]:
        """Return up to `most` free pages that were written to, in order; they count as unwritten from now on."""
        pages = sorted(islice(self._stale, most))
        self._stale.difference_update(pages)
        return pages

    def check_idle(self) -> None:
        """Raise RuntimeError if a page is held although nothing runs: a leak must not go unseen."""
        if self.used or any(self._holders) or sum(self._kept) != self.cached:
            raise RuntimeError(
                f"pages are held by nobody: {self.used} of {self.total} used, {self.cached} cached"
            )

    def _taken(self) -> int:
        if not self._free:
            self.evict(next(iter(self._cached)))
        page = self._free.pop()
        self._stale.discard(page)
        self._holders[page] = 1
        return page

    def _copied(self, source: int) -> int:
        target = self._taken()
        self.copies.append(PageCopy(source, target))
        self._let_go((source,))
        return target

    def _let_go(self, pages: Iterable[int]) -> None:
        for page in reversed(tuple(pages)):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if self._kept[page]:
                self._cached[page] = self._sweeps
            else:
                self._set_free(page)
        self.changes += 1

    def _set_free(self, page: int) -> None:
        self._free.append(page)
        self._stale.add(page)
