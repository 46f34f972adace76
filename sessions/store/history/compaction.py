"""Empties the journals of ended turns after the time that readers have to come back: the history has their texts.

A conversation is listed when a turn of it ends. A replica reads only the listed ones whose time has come.
"""

from __future__ import annotations

import asyncio
import random
import zlib

import structlog
from redis.asyncio import Redis

from sessions.errors import StoreDown, StoreFault
from sessions.store.history.codec import Keys
from sessions.store.redis.client import COMPACT, SCHEDULE, SETTLE_DUE, TAKE_DUE, run_script, store_errors

RESUME_WINDOW_S = 300.0
"""How long a reader who left during a reply, which has ended since, can resume it to the character.

It has to cover a tunnel, a lift, a phone in a pocket, a restart of the service: minutes. A delta costs as much as forty
characters for that long. A later reader still gets every whole reply, and a gap in the one that was partly seen.
"""
LOOK_S = 5.0
LEASE_S = 60.0
AT_ONCE = 64
LISTS = 16
"""Lists of conversations; a cluster's nodes share them."""

_log = structlog.get_logger("midstream.compaction")


class Compaction:
    """Lists conversations, and compacts those whose time has come, by the store's clock."""

    def __init__(self, client: Redis, *, ttl_s: float, window_s: float = RESUME_WINDOW_S) -> None:
        self._client = client
        self._window_ms = int(window_s * 1000)
        self._ttl_ms = int(ttl_s * 1000)

    async def schedule(self, keys: Keys) -> None:
        """List a conversation of which a turn has ended. Raises StoreDown."""
        arguments: list[str | bytes | int] = [keys.conversation, self._window_ms, self._ttl_ms]
        await run_script(self._client, SCHEDULE, [_list_of(keys.conversation)], arguments)

    async def forget(self, keys: Keys) -> None:
        """Remove a deleted conversation from the list. Raises StoreDown."""
        with store_errors():
            await self._client.zrem(_list_of(keys.conversation), keys.conversation)

    async def run(self) -> None:
        """Compact until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S * random.uniform(0.5, 1.5))
            try:
                await self.compact()
            except StoreDown:
                continue  # conversations that were taken are taken again after their lease
            except Exception:  # noqa: BLE001 - a task's boundary: one odd row must not end the service
                _log.exception("compaction failed")

    async def compact(self) -> int:
        """Compact all conversations whose time has come; return their number. Raises StoreDown."""
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
