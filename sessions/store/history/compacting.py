"""The journals of ended turns are emptied when their readers had time to come back: the history has their texts, once.

A conversation is listed when a turn of it ended; no replica reads more than the list of those whose time has come.
"""

from __future__ import annotations

import asyncio
import random
import zlib

import structlog
from redis.asyncio import Redis

from sessions.errors import StoreDown, StoreFault
from sessions.store.history.keys import Keys
from sessions.store.redis.client import COMPACT, SCHEDULE, SETTLE_DUE, TAKE_DUE, run_script, store_errors

RESUME_WINDOW_S = 300.0
"""How long a reader who left in the midst of a reply that has ended finds the rest of it, to the character.

A tunnel, a lift, a phone in a pocket, a restart of the service: minutes. Each delta costs as much as forty characters
for that long. Whoever comes later still gets every whole reply, and a gap in the one that they saw a part of.
"""
LOOK_S = 5.0
LEASE_S = 60.0
AT_ONCE = 64
LISTS = 16
"""A cluster's nodes share them."""

_log = structlog.get_logger("midstream.compaction")


class Compaction:
    """Lists conversations, and compacts those whose time has come. Times are the store's."""

    def __init__(self, client: Redis, *, ttl_s: float, window_s: float = RESUME_WINDOW_S) -> None:
        self._client = client
        self._window_ms = int(window_s * 1000)
        self._ttl_ms = int(ttl_s * 1000)

    async def schedule(self, keys: Keys) -> None:
        """A turn of a conversation has ended. Raises StoreDown."""
        arguments: list[str | bytes | int] = [keys.conversation, self._window_ms, self._ttl_ms]
        await run_script(self._client, SCHEDULE, [_list_of(keys.conversation)], arguments)

    async def forget(self, keys: Keys) -> None:
        """A conversation was deleted. Raises StoreDown."""
        with store_errors():
            await self._client.zrem(_list_of(keys.conversation), keys.conversation)

    async def run(self) -> None:
        """Compacts until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S * random.uniform(0.5, 1.5))
            try:
                await self.compact()
            except StoreDown:
                continue  # what was taken is taken again when its lease is over
            except Exception:  # noqa: BLE001 - a task's boundary: one odd row must not end the service
                _log.exception("compaction failed")

    async def compact(self) -> int:
        """Compacts all conversations whose time has come; gives their number. Raises StoreDown."""
        done = 0
        for number in range(LISTS):
            try:
                done += await self._compact_all(_list(number))
            except StoreFault:  # told there; the other lists are well
                continue
        return done

    async def _compact_all(self, listed: str) -> int:
        done = 0
        while True:
            lease, *taken = await run_script(self._client, TAKE_DUE, [listed], [AT_ONCE, int(LEASE_S * 1000)])
            for name in taken:
                await self._compact(listed, name.decode(), lease)
            done += len(taken)
            if len(taken) < AT_ONCE:
                return done

    async def _compact(self, listed: str, name: str, lease: bytes) -> None:
        try:
            again_ms = await run_script(self._client, COMPACT, Keys.named(name).pair(), [self._window_ms])
        except StoreFault:  # told there; its next turn lists it again
            again_ms = 0
        await run_script(self._client, SETTLE_DUE, [listed], [name, lease, int(again_ms)])


def _list_of(conversation: str) -> str:
    return _list(zlib.crc32(conversation.encode()) % LISTS)


def _list(number: int) -> str:
    return f"ms:compaction:{{{number}}}"
