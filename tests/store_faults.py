"""A store that answers and takes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from redis.asyncio import Redis


@asynccontextmanager
async def refusing_writes(store: Redis) -> AsyncIterator[None]:
    """It answers reads and refuses writes, as with a full disk."""
    await store.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        await store.config_set("min-replicas-to-write", 0)


@asynccontextmanager
async def without_memory(store: Redis) -> AsyncIterator[None]:
    """It refuses what would take memory."""
    before = (await store.config_get("maxmemory"))["maxmemory"]
    await store.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await store.config_set("maxmemory", before)


async def pid_of(store: Redis) -> int:
    """The store's process."""
    return int((await store.info("server"))["process_id"])


@contextmanager
def stalled(pid: int) -> Iterator[None]:
    """It neither reads nor answers; what is sent meanwhile it finds later."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
