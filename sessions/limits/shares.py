"""Slots that are shared fairly, so that nobody's share leaves none for others; and the admission of turns by them. Pure.

A subject may hold a fraction of the free slots. The fewer are free, the smaller is each share, and some slots stay free for
newcomers (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on Networking 6.2, 1998). Alone, an owner gets a quarter
of all slots, a key three quarters, and an address a third: without keys, one address can have many names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import msgspec

from sessions.errors import Draining, Overloaded
from sessions.limits.bounds import (
    ADDRESSES_PART,
    HANDSHAKES_PART,
    HEAVY_PART,
    IMAGE_BYTES,
    IMAGE_SLOT_BYTES,
    KEYS_TIMES,
    LEAST_HANDSHAKES,
    MAX_ACCEPTING,
    MAX_SLOTS,
    OWNERS_PART,
    SITE_BITS,
    SLOT_CHARS,
)

ADDRESS = "address:"
"""The prefix of groups without authentication."""


class Subject(msgspec.Struct, frozen=True):
    """What slots are counted for: an owner, and its key or address as `group`; empty: no group."""

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
        """Return whether a subject may take `weight` more slots. One that holds none may, while a slot is free.

        Several slots must leave half of what is free.
        """
        free = self._slots - self._held
        return (
            free > 0
            and weight <= max(1, free // HEAVY_PART)
            and _fits(self._owners[subject.owner], weight, owner_limit(free))
            and _fits(self._groups[subject.group], weight, group_limit(subject.group, free))
        )

    def take(self, subject: Subject, weight: int = 1) -> None:
        """Take `weight` slots, even without room: what was admitted elsewhere continues."""
        self._held += weight
        self._owners[subject.owner] += weight
        if subject.group:
            self._groups[subject.group] += weight

    def give_back(self, subject: Subject, weight: int = 1) -> None:
        """Give `weight` slots back; a subject without any is removed."""
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
    return free // ADDRESSES_PART if group.startswith(ADDRESS) else free * KEYS_TIMES


def _fits(held: int, weight: int, most: int) -> bool:
    return held == 0 or held + weight <= most


AGAIN_MS = 1000
"""When to retry after a refusal for load."""
_BUSY = "The server is busy; try again in a moment."
_CALLS = "You have too many open calls of tools; settle some, or try again in a moment."
_IMAGES = "The server holds too many images for you already; try again in a moment."
_SHARE = "You have too many replies running for the server's load; try again in a moment."


class Admission:
    """Admits turns of all kinds before the store or the engine is asked, so that a shed turn costs almost nothing.

    It counts turns that run, those that are queued, and those with open calls: `at_most` of each.
    """

    def __init__(self, *, at_most: int) -> None:
        self.accepting = FairShare(MAX_ACCEPTING)
        self.running = FairShare(at_most)
        self.queued = FairShare(at_most)
        self.calling = FairShare(at_most)
        self.images = FairShare(IMAGE_BYTES // IMAGE_SLOT_BYTES)
        self.draining = False

    def __len__(self) -> int:
        return len(self.running) + len(self.queued) + len(self.calling)

    def enter(
        self,
        subject: Subject,
        *,
        waits: bool = False,
        may_call: bool = False,
        chars: int = 0,
        image_bytes: int = 0,
    ) -> Admitted:
        """Admit a turn. Raises Draining, Overloaded.

        `may_call`: its calls may be open for long; `chars`: the length of its message; `image_bytes`: the size of its images.
        """
        if self.draining:
            raise Draining("The server is shutting down; send again after reconnecting.")
        held = self.queued if waits else self.running
        weight, image_slots = min(1 + chars // SLOT_CHARS, MAX_SLOTS), _slots(image_bytes)
        for shares, needed, why in (
            (self.accepting, weight, _BUSY),
            (held, 1, _SHARE),
            (self.calling, int(may_call), _CALLS),
            (self.images, image_slots, _IMAGES),
        ):
            if needed and not shares.has_capacity_for(subject, needed):
                raise Overloaded(why, retry_after_ms=AGAIN_MS)
        return Admitted(self, subject, held, weight=weight, image_slots=image_slots)

    def take_over(self, subject: Subject) -> Admitted:
        """Count a turn that waits for calls and was admitted elsewhere: it continues, even without room."""
        return Admitted(self, subject, self.calling)


class Admitted:
    """One admitted turn: being accepted, then queued, running, or waiting for calls."""

    __slots__ = ("_admission", "_held", "_image_slots", "_subject", "_weight")

    def __init__(
        self,
        admission: Admission,
        subject: Subject,
        held: FairShare,
        *,
        weight: int = 0,
        image_slots: int = 0,
    ) -> None:
        """`weight`: the slots of its message until it is accepted."""
        self._admission = admission
        self._subject = subject
        self._held: FairShare | None = held
        self._weight = weight
        self._image_slots = image_slots
        held.take(subject)
        admission.accepting.take(subject, weight)
        admission.images.take(subject, image_slots)

    def end_acceptance(self) -> None:
        """Note that it was accepted or refused: it needs the store no longer."""
        self._admission.accepting.give_back(self._subject, self._weight)
        self._weight = 0

    def begin(self) -> None:
        """Start it. There is room: what was accepted is run."""
        self._move(self._admission.running)

    def call(self) -> None:
        """Note that it has ended with open calls: it takes no slot of running turns."""
        self._move(self._admission.calling)

    def hold(self, image_bytes: int) -> None:
        """Hold `image_bytes` of images, those shown before included. Raises Overloaded."""
        more = _slots(image_bytes) - self._image_slots
        if more > 0 and not self._admission.images.has_capacity_for(self._subject, more):
            raise Overloaded(_IMAGES, retry_after_ms=AGAIN_MS)
        self.show(image_bytes)

    def show(self, image_bytes: int) -> None:
        """Set the bytes of images that it holds, even without room: what was accepted is run."""
        if self._held is not None:
            self._admission.images.give_back(self._subject, self._image_slots)
            self._image_slots = _slots(image_bytes)
            self._admission.images.take(self._subject, self._image_slots)

    def leave(self) -> None:
        """Stop counting it."""
        self.end_acceptance()
        if self._held is not None:
            self._held.give_back(self._subject)
            self._admission.images.give_back(self._subject, self._image_slots)
            self._held = None

    def _move(self, to: FairShare) -> None:
        if self._held is not None and self._held is not to:
            self._held.give_back(self._subject)
            self._held = to
            to.take(self._subject)


def _slots(image_bytes: int) -> int:
    return -(-image_bytes // IMAGE_SLOT_BYTES)


Address = IPv4Address | IPv6Address


class HandshakeLimit:
    """Connections that are not admitted yet: their `hello` is awaited, or their token is being verified.

    One address has an eighth of the slots at most, and so have all clients whose address is not known, together. Clients on this
    machine have no such limit.
    """

    def __init__(self, *, slots: int) -> None:
        self._free = slots
        self._share = max(LEAST_HANDSHAKES, slots // HANDSHAKES_PART)
        self._taken: Counter[Address | IPv4Network | IPv6Network | None] = Counter()
        self.is_closed = False
        """Whether the server is about to stop, and accepts no connection."""

    @property
    def is_full(self) -> bool:
        """Whether the next connection has to be refused."""
        return self._free <= 0

    def is_full_for_address(self, address: Address | None) -> bool:
        """Return whether this address has used its share. None: all addresses that a proxy did not name share one."""
        return self._taken[site_of(address)] >= self._share and not (address and address.is_loopback)

    @contextmanager
    def slot(self, address: Address | None) -> Iterator[None]:
        """Hold a slot while the block lasts."""
        site = site_of(address)
        self._free -= 1
        self._taken[site] += 1
        try:
            yield
        finally:
            self._free += 1
            self._taken[site] -= 1
            if not self._taken[site]:
                del self._taken[site]


def site_of(address: Address | None) -> IPv4Address | IPv4Network | IPv6Network | None:
    """Return an address, or of IPv6 the network that belongs to one subscriber (RFC 6177)."""
    if not isinstance(address, IPv6Address):
        return address
    return address.ipv4_mapped or ip_network((address, SITE_BITS), strict=False)
