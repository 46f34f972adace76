"""Counts of messages and tokens in Redis, where all replicas share them. One round trip a message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from redis.asyncio import Redis

from connections.limits.quotas import Gauge, Reading
from sessions.errors import StoreDown
from sessions.store.client import store_errors

LUA = Path(__file__).parent / "lua"
AGAIN_S = 1.0


class SharedCounts:
    """`Counts` (`connections.limits.meter`). `run` must be running for tokens to be counted.

    A script of its own, and not the `limits` package: that asks the store once for each limit and counts what a later one refuses.
    """

    def __init__(self, client: Redis) -> None:
        self._admit = client.register_script((LUA / "admit.lua").read_text())
        self._charge = client.register_script((LUA / "charge.lua").read_text())
        self._owed: Counter[str] = Counter()
        self._wake = asyncio.Event()

    async def take(self, gauges: Sequence[Gauge]) -> tuple[bool, list[Reading]]:
        """Counts one message where every limit has room, else none. Raises StoreDown."""
        numbers = [part for gauge in gauges for part in (gauge.kind.value, gauge.limit)]
        with store_errors():
            room, *counted = await self._admit(keys=[_key(gauge) for gauge in gauges], args=numbers)
        return bool(room), [Reading(*pair) for pair in zip(counted[::2], counted[1::2], strict=True)]

    def charge(self, gauges: Sequence[Gauge], tokens: int) -> None:
        """Counts tokens, as soon as the store takes them."""
        self._owed.update({_key(gauge): tokens for gauge in gauges})
        self._wake.set()

    async def run(self) -> None:
        """Writes what was charged until cancelled."""
        while True:
            await self._wake.wait()
            try:
                await self.settle()
            except StoreDown:
                await asyncio.sleep(AGAIN_S)

    async def settle(self) -> None:
        """Writes what was charged so far. Raises StoreDown."""
        while self._owed:
            key, tokens = next(iter(self._owed.items()))
            with store_errors():
                await self._charge(keys=[key], args=[tokens])
            self._owed -= Counter({key: tokens})
        self._wake.clear()


def _key(gauge: Gauge) -> str:
    """The limits of a message are looked at together: the tag keeps them on one server of a cluster."""
    return f"ms:limit:{gauge.kind.value}:{{limit}}:{gauge.subject}"
