"""The KV cache: pages of keys and values, who holds them, which prefixes they keep, and the tensors that they are in.

`PagePool` and `PrefixCache` handle page numbers alone. Any number of requests may hold a page, and so may the cache of prefixes.
`free + used + cached == total` always: requests hold the used pages, and only the cache holds the cached ones. A page with
another holder is copied before it is written.

`PagedCache` has two tensors of pages for each layer, which are made once and never move. On a CPU the system provides their
memory when a page is first written. A layer is made when the model first writes to it, with the shapes that it writes, so no
table of model types is needed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from engine.errors import ModelNotUsable
from engine.step_layout import StepLayout

CPU_KV_SHARE = 0.25
"""The share of the memory free after loading that keys and values take on a CPU, where all else needs memory, too."""

CUDA_KV_SHARE = 0.95
"""The same on CUDA, of the memory left beside the largest step, which is measured. The rest is for CUDA graphs."""

KEPT_SHARE = 0.25
"""Memory for prompts kept for later turns, relative to that of all replies at once. They also use what replies leave free."""

CPU_PAGE = 64

CUDA_PAGE = 256
"""Tokens of a page: 64 measured best on a CPU; on CUDA attention was measured with 256."""

SMALLEST_CONTEXT = 64
"""The fewest tokens of prompt and reply that make sense for a conversation."""

SHARED_SALT = "\x00everyone"
"""The salt of what everyone may share: the operator's system prompt."""

SHORTEST = 16
"""The fewest tokens of a prefix that is worth keeping or finding."""

CANDIDATES = 64
"""How many pages, the newest ones, are compared token by token if a prompt diverges within a page."""

TOKEN_BYTES = 8


def page_size(device: str) -> int:
    """Return how many tokens a page has on a type of device, such as "cpu"."""
    return CUDA_PAGE if device == "cuda" else CPU_PAGE


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory for `pages` of `page_size` tokens, for requests and for the cache of prefixes.

    `context_tokens`: the most tokens of one prompt with its reply. `bytes_per_token`: keys and values of all layers.
    """

    pages: int
    page_size: int
    context_tokens: int
    bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        """Memory for all pages."""
        return self.pages * self.page_size * self.bytes_per_token


def kv_budget(
    size: int | None,
    *,
    bytes_per_token: int,
    window: int | None,
    max_batch: int,
    page_size: int,
    is_limit: bool = False,
) -> KVBudget:
    """Divide `size` bytes into pages. `size` None: the free memory is unknown, so every reply gets its whole window.

    `is_limit`: no more is taken than the windows of `max_batch` replies and `KEPT_SHARE` of that: more is of little use.
    Raises ModelNotUsable if there is too little memory.
    """
    if size is None and window is None:
        raise ModelNotUsable(
            "Neither the model nor this machine has a known limit for the context: set MIDSTREAM_KV_MEMORY."
        )
    whole = max_batch * -(-(window or 0) // page_size) * page_size
    total = whole if size is None else size // bytes_per_token
    if is_limit and window is not None:
        total = min(total, int((1 + KEPT_SHARE) * whole))
    # With memory for less than one page, the page is smaller: a model with a short window may need no more.
    page = min(page_size, max(1, total))
    room = total // page * page
    context = room if window is None else min(window, room)
    if context < SMALLEST_CONTEXT:
        raise ModelNotUsable(
            f"Keys and values have room for {context} tokens, which is too little. Raise MIDSTREAM_KV_MEMORY."
        )
    return KVBudget(total // page, page, context, bytes_per_token)


class PageCopy(NamedTuple):
    """The content of page `source` has to be copied to page `target` before the next step."""

    source: int
    target: int


class BlockTable:
    """The pages of one request, in the order of its tokens. Only the pool changes it.

    `writable`: from the start of the last `extend` to this position, nobody else holds the pages.
    """

    __slots__ = ("pages", "writable")

    def __init__(self, pages: Iterable[int] = ()) -> None:
        self.pages = array("i", pages)
        self.writable = 0


class PagePool:
    """`total` pages of `size` tokens each. `copies` are due before the next step, in order; the caller makes and clears them.

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
        self._cached: OrderedDict[int, None] = OrderedDict()

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

    def extend(self, table: BlockTable, start: int, stop: int) -> bool:
        """Make the positions from `start` to `stop` writable. False if there is too little room; then nothing changes."""
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

    def release(self, table: BlockTable) -> None:
        """Release all pages of a table. If the cache holds them, the last ones are reused first."""
        self._let_go(table.pages)
        del table.pages[:]
        table.writable = 0

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
            self._free.append(page)
            self.changes += 1

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
                self._cached[page] = None
            else:
                self._free.append(page)
        self.changes += 1


class Match(NamedTuple):
    """The pages that hold the first `tokens` tokens of a prompt; the last page may hold more."""

    pages: Sequence[int]
    tokens: int


NOTHING = Match((), 0)


@dataclass(slots=True, eq=False)
class _Node:
    """A page, its valid tokens, and the pages that continue it: by salt, then by tokens."""

    page: int
    parent: _Node | None
    salt: str
    tokens: bytes
    children: dict[str, dict[bytes, _Node]] = field(default_factory=dict)


class PrefixCache:
    """The cache of prefixes over a pool of pages. Pages that only it holds are given up for requests, the oldest first."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = _Node(-1, None, "", b"")
        self._nodes: dict[int, list[_Node]] = {}
        pool.evict = self._evict

    def find(self, salt: str, prompt: Sequence[int], *, shared: int = 0) -> Match:
        """Return what the cache has of a prompt: never its last token, whose logits have to be computed.

        Only pages of this salt count, and within the first `shared` tokens everyone's. So a request that shares nothing
        can't find out by guessing what others share.
        """
        tokens = array("q", prompt[:-1]).tobytes()
        node, pages, page_bytes = self._root, array("i"), self._pool.size * TOKEN_BYTES
        for place, piece in self._pieces(tokens):
            owner = SHARED_SALT if place + page_bytes <= shared * TOKEN_BYTES else salt
            child = node.children.get(owner, {}).get(piece) if len(piece) == page_bytes else None
            if child is None:
                break
            pages.append(child.page)
            node = child
        known = len(pages) * page_bytes
        rest = tokens[known : known + page_bytes]
        everyones = rest[: max(0, shared * TOKEN_BYTES - known)]
        found = [_longest(node, salt, rest), _longest(node, SHARED_SALT, everyones)]
        page, more = max(found, key=lambda one: one[1])
        if page is not None and more:
            pages.append(page)
        count = known // TOKEN_BYTES + more
        return Match(pages, count) if count >= SHORTEST else NOTHING

    def insert(self, salt: str, tokens: Sequence[int], pages: Sequence[int], *, shared: int = 0) -> None:
        """Keep the pages of these tokens, which a request holds. Pages that are known already stay as they are.

        Pages within the first `shared` tokens belong to everyone.
        """
        if len(tokens) < SHORTEST:
            return
        node, page_bytes = self._root, self._pool.size * TOKEN_BYTES
        for (place, piece), page in zip(self._pieces(array("q", tokens).tobytes()), pages, strict=False):
            owner = SHARED_SALT if place + page_bytes <= shared * TOKEN_BYTES else salt
            siblings = node.children.get(owner, {})
            child = siblings.get(piece)
            if child is None:
                is_part = len(piece) < page_bytes
                if is_part and any(one.tokens.startswith(piece) for one in _newest(siblings)):
                    return
                child = self._add(node, owner, piece, page)
            node = child

    def __len__(self) -> int:
        return len(self._nodes)

    def _pieces(self, tokens: bytes) -> Iterator[tuple[int, bytes]]:
        step = self._pool.size * TOKEN_BYTES
        return ((place, tokens[place : place + step]) for place in range(0, len(tokens), step))

    def _add(self, parent: _Node, salt: str, tokens: bytes, page: int) -> _Node:
        self._pool.keep(page)
        siblings = parent.children.setdefault(salt, {})
        shorter = [one for one in _newest(siblings) if tokens.startswith(one.tokens)]
        node = siblings[tokens] = _Node(page, parent, salt, tokens)
        self._nodes.setdefault(page, []).append(node)
        for one in shorter:
            self._remove(one)
        return node

    def _evict(self, page: int) -> None:
        while nodes := self._nodes.get(page):
            self._remove(nodes[-1])

    def _remove(self, node: _Node) -> None:
        """Forget a node, and all that continue it."""
        if node.parent is not None:
            siblings = node.parent.children[node.salt]
            del siblings[node.tokens]
            if not siblings:
                del node.parent.children[node.salt]
        waiting = [node]
        while waiting:
            one = waiting.pop()
            waiting += (child for children in one.children.values() for child in children.values())
            nodes = self._nodes[one.page]
            nodes.remove(one)
            if not nodes:
                del self._nodes[one.page]
                self._pool.forget(one.page)


def _newest(siblings: dict[bytes, _Node]) -> Iterator[_Node]:
    return islice(reversed(siblings.values()), CANDIDATES)


def _longest(node: _Node, salt: str, wanted: bytes) -> tuple[int | None, int]:
    """Return the child page that begins with the most tokens of `wanted`, and their number."""
    best: tuple[int | None, int] = None, 0
    for one in _newest(node.children.get(salt, {})):
        same = common_tokens(one.tokens, wanted)
        if same > best[1]:
            best = one.page, same
    return best


def common_tokens(first: bytes, second: bytes) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    same, differ = 0, min(len(first), len(second)) // TOKEN_BYTES + 1
    while differ - same > 1:
        middle = (same + differ) // 2
        if (
            first[same * TOKEN_BYTES : middle * TOKEN_BYTES]
            == second[same * TOKEN_BYTES : middle * TOKEN_BYTES]
        ):
            same = middle
        else:
            differ = middle
    return same


class LayerPages(NamedTuple):
    """One layer's keys and values, (pages, page size, heads, head size). Places that were never written are undefined.

    In memory the tokens of a head are side by side within a page, so that a CPU reads them in one piece.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, keys: Tensor, values: Tensor, pages: int, size: int) -> LayerPages:
        """Make `pages` pages of `size` tokens, for keys and values like these, (rows, heads, head size)."""
        made = [one.new_empty(pages, one.shape[1], size, one.shape[2]) for one in (keys, values)]
        return cls(made[0].transpose(1, 2), made[1].transpose(1, 2))

    @property
    def bytes_per_token(self) -> int:
        """Memory for one token, in bytes."""
        return sum(one.element_size() * one.shape[2] * one.shape[3] for one in self)


Store = Callable[[LayerPages, StepLayout, Tensor, Tensor], None]
"""Writes keys and values, (rows, heads, head size), to the pages of a layout. Each attention backend has its own."""


class PagedCache(Cache):
    """The cache for a transformers module. It stores a step's keys and values, and hands out whole layers.

    Attention reads from the layers what it needs (`engine.model.attention`). With `gathers` the cache hands out the contexts of
    a step's requests instead, (requests, heads, tokens, head size), for modules that make keys and values of them first.
    """

    layers: list[LayerPages]  # type: ignore[assignment] # transformers' own layers have one length, and no pages

    def __init__(self, *, pages: int, page_size: int, store: Store, gathers: bool = False) -> None:
        super().__init__(layers=[])
        self.gathers = gathers
        self.pages = pages
        self.page_size = page_size
        self._store = store
        self._step: StepLayout

    @property
    def bytes_per_token(self) -> int:
        """Memory for one token in all layers, in bytes. It is known once the model has run."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def begin(self, step: StepLayout) -> None:
        """Set the step whose pages the module writes to from now on."""
        self._step = step

    @torch.inference_mode()
    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages in all layers, in order."""
        for layer in self.layers:
            for store in layer:
                for source, target in copies:
                    store[target].copy_(store[source])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values, (1, heads, rows, head size); return the layer's pages, or gathered contexts."""
        keys, values = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        layer = self.layer(layer_idx, keys, values)
        self._store(layer, self._step, keys, values)
        if not self.gathers:
            return layer
        contexts = [store[self._step.tables].flatten(1, 2).transpose(1, 2) for store in layer]
        return contexts[0], contexts[1]

    def layer(self, number: int, keys: Tensor, values: Tensor) -> LayerPages:
        """Return a layer, which is made now if it is new, for keys and values like these, (rows, heads, size)."""
        while len(self.layers) <= number:
            self.layers.append(LayerPages.make(keys, values, self.pages, self.page_size))
        return self.layers[number]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: modules need no length, since they always receive position ids."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return the offset of masks, which are not used, since attention makes its own."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (positions, offset) of masks, which are not used, since attention makes its own."""
        return self.pages * self.page_size, 0
