"""Consistent hashing by highest random weight (Thaler and Ravishankar, 1998). Pure; the same in every process.

Another member takes over its own share alone, and one that goes leaves its share to all others: nobody else moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def ranked(key: str, members: Sequence[str]) -> list[int]:
    """Return the places of the members in the order in which this key prefers them; names are unique."""
    weights = [_weight(key, member) for member in members]
    return sorted(range(len(members)), key=lambda place: weights[place], reverse=True)


def _weight(key: str, member: str) -> bytes:
    """Return a number that looks random, but is the same for this pair at all times."""
    pair = f"{len(member)}:{member}{key}"
    return blake2b(pair.encode(errors="surrogatepass"), digest_size=8).digest()
