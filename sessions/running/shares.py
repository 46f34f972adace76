"""Places that many want, divided so that nobody's share leaves others none. Pure.

Who asks may hold as many as a part of those that are still free: the fuller it is, the smaller the share of each, and
some stay free for who comes next (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6.2, 1998).
Alone, an owner comes to a quarter of all places, a key to three quarters, and an address to a third: whoever comes by an
address alone has as many names as it likes.
"""

from __future__ import annotations

from collections import Counter

import msgspec

OWNERS_PART = 3
"""An owner may hold a third of what is free."""
GROUPS_TIMES = 3
"""A key may hold three times what is free."""
ADDRESSES_PART = 2
"""An address may hold half of what is free."""
ADDRESS = "address:"
"""Begins the group of whom nobody asks for a key."""


class Subject(msgspec.Struct, frozen=True):
    """Whom something is counted for: an owner, and the key or the address by which it came. Empty: for no group."""

    owner: str
    group: str = ""


class Shares:
    """So many places. Every `take` is followed by one `give_back`."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._held = 0
        self._owners: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._held

    def has_room_for(self, subject: Subject) -> bool:
        """Whether a subject may take one more; who holds none may, as long as one is free."""
        free = self._places - self._held
        return free > 0 and (
            self._owners[subject.owner] < max(1, free // OWNERS_PART)
            and self._groups[subject.group] < _most_of_a_group(subject.group, free)
        )

    def take(self, subject: Subject, weight: int = 1) -> None:
        """Counts one more, of which one takes so many places, also where there was no room: what was admitted elsewhere goes on."""
        self._held += weight
        self._owners[subject.owner] += weight
        if subject.group:
            self._groups[subject.group] += weight

    def give_back(self, subject: Subject, weight: int = 1) -> None:
        """Counts one less; who holds none is forgotten."""
        self._held -= weight
        for counts, name in ((self._owners, subject.owner), (self._groups, subject.group)):
            counts[name] -= weight
            if counts[name] <= 0:
                del counts[name]


def _most_of_a_group(group: str, free: int) -> int:
    return max(1, free // ADDRESSES_PART) if group.startswith(ADDRESS) else free * GROUPS_TIMES
