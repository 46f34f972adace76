"""Consistent hashing by highest random weight (Thaler and Ravishankar, 1998). Pure; the same in every process.

A new member takes only its own share, and one that leaves gives its share to all others. No other key moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def ranked(key: str, members: Sequence[str]) -> list[int]:
    """Return the indices of the members, whose names are unique, in the order in which this key prefers them."""
    weights = [_weight(key, member) for member in members]
    return sorted(range(len(members)), key=lambda place: weights[place], reverse=True)


def _weight(key: str, member: str) -> bytes:
    """Return a number that looks random, but is always the same for this pair."""
    pair = f"{len(member)}:{member}{key}"
    return blake2b(pair.encode(errors="surrogatepass"), digest_size=8).digest()
