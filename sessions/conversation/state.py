"""What a live conversation knows of itself: its names, the store's state, and what was published."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from sessions.records import Meta, Owner
from sessions.store.history.codec import Keys


class Address(msgspec.Struct, frozen=True):
    """The owner of a conversation, its id for the owner, and its keys in the store."""

    owner: Owner
    conversation_id: str
    keys: Keys


class StoredState:
    """The store's state, as far as known here. `version`: the number of changes; `seq`: the last assigned one.

    `newest_reply`: the reply of the turn accepted last; the next queued message follows it.
    """

    __slots__ = ("meta", "newest_reply", "seq", "version")

    def __init__(self) -> None:
        self.meta: Meta | None = None
        self.seq = 0
        self.version = 0
        self.newest_reply = ""


MAX_RECENT_CALLS = 256
"""Ids of calls that are remembered; older ones are looked up in the store."""


class PublishedState:
    """What attached connections got: all events up to `seq`, of the `epoch`, if it is `followed`.

    `calls`: the ids of the newest ones.
    """

    __slots__ = ("calls", "epoch", "followed", "seq")

    def __init__(self) -> None:
        self.calls: deque[str] = deque(maxlen=MAX_RECENT_CALLS)
        self.epoch = ""
        self.seq = 0
        self.followed = False


class Locks:
    """Orders concurrent work.

    `claiming`: arrivals that take their places; `ordering`: a seq from memory, from its reservation until it
    is published; `writing`: everything that takes a seq, except for the running turn's own events.
    """

    __slots__ = ("claiming", "ordering", "writing")

    def __init__(self) -> None:
        self.claiming = asyncio.Lock()
        self.ordering = asyncio.Lock()
        self.writing = asyncio.Lock()
