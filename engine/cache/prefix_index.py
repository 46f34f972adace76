"""Finds, among kept token sequences, the one that shares the longest beginning with a prompt.

Blocks of tokens are hashed in a chain, as in vLLM's automatic prefix caching; the tokens themselves decide. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BLOCK = 16
"""Tokens of a block. Beginnings shorter than one are not worth finding."""

_CANDIDATES = 8
"""Sequences compared token by token: beyond the last block that is found they differ by less than one block."""


class Match(NamedTuple):
    """A kept sequence, and how many of its first tokens a prompt begins with."""

    key: int
    tokens: int


class PrefixIndex:
    """Kept sequences by their beginnings. A salt separates what may not be found by others."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, array[int]]] = {}
        self._blocks: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: int, salt: str, tokens: array[int]) -> None:
        """Keep a sequence under a key of its own."""
        self._kept[key] = salt, tokens
        for block in _chain(salt, tokens):
            self._blocks.setdefault(block, {})[key] = None

    def remove(self, key: int) -> array[int]:
        """Forget a sequence and return it."""
        salt, tokens = self._kept.pop(key)
        for block in _chain(salt, tokens):
            keys = self._blocks[block]
            del keys[key]
            if not keys:
                del self._blocks[block]
        return tokens

    def find(self, salt: str, prompt: Sequence[int]) -> Match | None:
        """Return the longest match of at least one block, the newest of equals; None where there is none."""
        found: dict[int, None] = {}
        for block in _chain(salt, prompt):
            keys = self._blocks.get(block)
            if keys is None:
                break
            found = keys
        wanted = array("q", prompt)
        newest = [key for key, _ in zip(reversed(found), range(_CANDIDATES), strict=False)]
        matches = [Match(key, common_prefix(self._kept[key][1], wanted)) for key in newest]
        best = max(matches, key=lambda match: match.tokens, default=None)
        return best if best is not None and best.tokens >= BLOCK else None


def common_prefix(first: array[int], second: array[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    same, differ = 0, min(len(first), len(second)) + 1
    while differ - same > 1:
        middle = (same + differ) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            differ = middle
    return same


def _chain(salt: str, tokens: Sequence[int]) -> Iterator[int]:
    link = hash(salt)
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        link = hash((link, *tokens[start : start + BLOCK]))
        yield link
