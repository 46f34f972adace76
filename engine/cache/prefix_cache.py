"""Finds the pages of earlier requests by the tokens that a prompt begins with. Pure: pages are numbers.

It is a tree: the children of a page are the pages that continued it, by their tokens. The last page of a path may be partly
filled, and may be partly shared. A salt separates owners, who don't find each other's pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from engine.cache.pages import PagePool

SHARED_SALT = "\x00everyone"
"""The salt of what everyone may share: the operator's system prompt."""

SHORTEST = 16
"""The fewest tokens of a prefix that is worth keeping or finding."""

CANDIDATES = 64
"""How many pages, the newest ones, are compared token by token if a prompt diverges within a page."""

TOKEN_BYTES = 8


class Match(NamedTuple):
    """The pages that hold the first `tokens` tokens of a prompt; the last page may hold more."""

    pages: Sequence[int]
    tokens: int


NOTHING = Match((), 0)


class _Node:
    """A page, its valid tokens, and the pages that continue it: by salt, then by tokens."""

    __slots__ = ("children", "page", "parent", "salt", "tokens")

    def __init__(self, page: int, parent: _Node | None, salt: str, tokens: bytes) -> None:
        self.page = page
        self.parent = parent
        self.salt = salt
        self.tokens = tokens
        self.children: dict[str, dict[bytes, _Node]] = {}


class PrefixCache:
    """The cache of prefixes over a pool of pages. Pages that only it holds are given up for requests, the oldest first."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = _Node(-1, None, "", b"")
        self._nodes: dict[int, list[_Node]] = {}
        pool.evict = self._evict

    def find(self, salt: str, prompt: Sequence[int], *, shared: int = 0) -> Match:
        """Return what is known of a prompt. Its last token never is, since its logits have to be computed.

        Pages of this salt count, and within the first `shared` tokens those of everyone. A request that shares none
        must not find out by guessing what others share.
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
                if len(piece) < page_bytes and _begins(siblings, piece):
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


def _begins(siblings: dict[bytes, _Node], tokens: bytes) -> bool:
    return any(one.tokens.startswith(tokens) for one in _newest(siblings))


def _longest(node: _Node, salt: str, wanted: bytes) -> tuple[int | None, int]:
    """Return the child page with the most tokens in common with `wanted` from its beginning on, and their number."""
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
