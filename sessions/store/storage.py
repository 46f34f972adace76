"""What a replica keeps in the store, and by which rooms: the doors to Redis of the sessions floor."""

from __future__ import annotations

from typing import Self

import msgspec
from redis.asyncio import Redis

from sessions.store.durability import Durability
from sessions.store.history import History
from sessions.store.index import Index
from sessions.store.journal import Journal
from sessions.store.ownership import Ownership


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's. `unsettled`: its turns of which nobody knows whether the store accepted them."""

    history: History
    index: Index
    journal: Journal
    ownership: Ownership
    unsettled: set[str]

    @classmethod
    def of(
        cls,
        client: Redis,
        *,
        replica: str,
        ttl_s: float,
        durability: Durability = Durability.EVERYSEC,
    ) -> Self:
        """`ttl_s`: seconds that a conversation is kept after its last turn."""
        return cls(
            history=History(client, ttl_s=ttl_s, replica=replica, durability=durability),
            index=Index(client, ttl_s=ttl_s),
            journal=Journal(client, replica=replica),
            ownership=Ownership(client, replica=replica),
            unsettled=set(),
        )
