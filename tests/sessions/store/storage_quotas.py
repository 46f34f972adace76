"""What ledgers count, and a ledger with little room."""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis

from sessions.records import Owner
from sessions.store.images import IMAGE_COSTS
from sessions.store.ledger import GROWTH_PART, Ledger, Memory
from tests.sample_images import Picture

MIB = 1024**2


def cost(picture: Picture) -> int:
    """Return what one copy of an image counts."""
    return len(msgspec.msgpack.encode(picture.image)) + IMAGE_COSTS


async def counted_bytes(store: Redis, name: str) -> int:
    """Return what a ledger counts."""
    return sum(map(int, await store.hvals(name)))  # type: ignore[misc]


async def of(store: Redis, owner: Owner) -> int:
    """Return what an owner's ledger counts."""
    return await counted_bytes(store, f"ms:stored:{{{owner}}}")


async def used(store: Redis) -> int:
    """Return the bytes that the store holds."""
    return int((await store.info("memory"))["used_memory"])


async def size_with_room(store: Redis, room: int) -> int:
    """Return the size of a store that holds what this one does, and in which growth may take so many bytes more."""
    return int((await used(store) + room) / GROWTH_PART)


async def ledger_with_room(store: Redis, room: int) -> Ledger:
    """Return a ledger of a store in which growth may take so many bytes more."""
    return Ledger(store, Memory(store, most_bytes=await size_with_room(store, room)))
