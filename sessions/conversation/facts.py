"""What a live conversation knows of itself: its names, what the store has, what attached connections were given."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from sessions.records import Meta, Owner
from sessions.store.history.keys import Keys


class Address(msgspec.Struct, frozen=True):
    """Whose conversation it is, and its names: for its owner, and for the store."""

    owner: Owner
    conversation_id: str
    keys: Keys


class Known:
    """What the store has, as far as known here. `version`: how often that changed; `seq`: the newest that is given away.

    `newest_reply`: of the turn accepted last: the next message of the queue stands behind it.
    """

    __slots__ = ("meta", "newest_reply", "seq", "version")

    def __init__(self) -> None:
        self.meta: Meta | None = None
        self.seq = 0
        self.version = 0
        self.newest_reply = ""


CALLS_KNOWN = 256
"""Ids; of older ones the store is asked."""


class Published:
    """What attached connections were given: all events up to `seq`, which counts in `epoch`, where it is `followed`.

    `calls`: the ids of the newest ones.
    """

    __slots__ = ("calls", "epoch", "followed", "seq")

    def __init__(self) -> None:
        self.calls: deque[str] = deque(maxlen=CALLS_KNOWN)
        self.epoch = ""
        self.seq = 0
        self.followed = False


class Locks:
    """What comes one after the other.

    `claiming`: arrivals take their places; `ordering`: a seq from memory, from its reservation until it was told;
    `writing`: all that takes a seq, but for the running turn's own events.
    """

    __slots__ = ("claiming", "ordering", "writing")

    def __init__(self) -> None:
        self.claiming = asyncio.Lock()
        self.ordering = asyncio.Lock()
        self.writing = asyncio.Lock()
