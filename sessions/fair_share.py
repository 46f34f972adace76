"""Slots that are shared fairly, so that nobody's share leaves none for others. Pure.

A subject may hold a number that is a part of the free slots. The fuller it is, the smaller is each share, and some slots stay
free for newcomers (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6.2, 1998). Alone, an owner
gets a quarter of all slots, a key three quarters, and an address a third: without keys, one address can have many names.
"""

from __future__ import annotations

from collections import Counter, deque

import msgspec

WINDOW = 1024
"""Pieces of recent work that are remembered."""
PART = 2
"""A group that had at most half of an even part works seldom."""


class RecentUsage:
    """The recent work of all groups together, in pieces of one size."""

    def __init__(self, lately: int = WINDOW) -> None:
        self._lately = lately
        self._works: deque[tuple[str, int]] = deque()
        self._pieces = 0
        self._had: Counter[str] = Counter()

    def count(self, group: str, pieces: int = 1) -> None:
        """Count work that a group causes."""
        self._works.append((group, pieces))
        self._had[group] += pieces
        self._pieces += pieces
        while self._pieces > self._lately:
            forgotten, had = self._works.popleft()
            self._pieces -= had
            self._had[forgotten] -= had
            if not self._had[forgotten]:
                del self._had[forgotten]

    def is_light(self, group: str) -> bool:
        """Return whether a group had at most half of an even part."""
        return PART * len(self._had) * self._had.get(group, 0) <= self._pieces


OWNERS_PART = 3
"""An owner may hold a third of what is free."""
GROUPS_TIMES = 3
"""A key may hold three times what is free."""
ADDRESSES_PART = 2
"""An address may hold half of what is free."""
HEAVY_PART = 2
"""What takes several slots may take half of what is free."""
ADDRESS = "address:"
"""The prefix of groups without authentication."""


class Subject(msgspec.Struct, frozen=True):
    """A subject of counts: an owner, and its key or address. Empty: no group."""

    owner: str
    group: str = ""


class FairShare:
    """A number of slots. Every `take` is followed by one `give_back`."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held = 0
        self._owners: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._held

    def has_capacity_for(self, subject: Subject, weight: int = 1) -> bool:
        """Return whether a subject may take one more of this size: one that holds none may, while a slot is free.

        What takes several slots must leave half of what is free.
        """
        free = self._slots - self._held
        return (
            free > 0
            and weight <= max(1, free // HEAVY_PART)
            and _fits(self._owners[subject.owner], weight, owner_limit(free))
            and _fits(self._groups[subject.group], weight, group_limit(subject.group, free))
        )

    def take(self, subject: Subject, weight: int = 1) -> None:
        """Take one of this size, even without room: what was admitted elsewhere continues."""
        self._held += weight
        self._owners[subject.owner] += weight
        if subject.group:
            self._groups[subject.group] += weight

    def give_back(self, subject: Subject, weight: int = 1) -> None:
        """Give one back; a subject without any is removed."""
        self._held -= weight
        for counts, name in ((self._owners, subject.owner), (self._groups, subject.group)):
            counts[name] -= weight
            if counts[name] <= 0:
                del counts[name]


def owner_limit(free: int) -> int:
    """Return how much an owner may hold."""
    return free // OWNERS_PART


def group_limit(group: str, free: int) -> int:
    """Return how much the owners of a key or an address may hold."""
    return free // ADDRESSES_PART if group.startswith(ADDRESS) else free * GROUPS_TIMES


def _fits(held: int, weight: int, most: int) -> bool:
    return held == 0 or held + weight <= most
