"""Counts of messages and tokens in Redis, shared by all replicas. One round trip a message.

In a cluster each client and each key has its own slot, so that no server counts for all, and a script sees one slot. A message
with both is counted one after the other, and a refusal of the last undoes the others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

from redis.asyncio import Redis, RedisCluster

from connections.limits.quotas import Gauge, Kind, Reading
from sessions.errors import StoreDown
from sessions.store.redis.client import store_errors

LUA = Path(__file__).parent / "lua"
AGAIN_S = 1.0

_Taken = dict[Gauge, Reading]
_NOT_COUNTED = Reading(0, 0)
"""The reading of a limit that counted nothing, since another one has no room."""


class SharedCounts:
    """`Counts` (`connections.limits.meter`). `run` must be running for tokens to be counted.

    It uses its own script instead of the `limits` package, which calls the store once for each limit, and counts messages that
    a later limit refuses. The client retries calls, so messages and charges have numbers by which the store recognises them.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._apart = isinstance(cast("object", client), RedisCluster)
        self._admit = client.register_script((LUA / "admit.lua").read_text())
        self._charge = client.register_script((LUA / "charge.lua").read_text())
        self._name = secrets.token_hex(4)
        self._charges = 0
        self._under_way: tuple[Gauge, int, int] | None = None
        self._owed: Counter[Gauge] = Counter()
        self._wake = asyncio.Event()

    async def take(
        self, gauges: Sequence[Gauge], *, message: str | None = None
    ) -> tuple[bool, list[Reading]]:
        """Count a message if every limit has room. Raises StoreDown.

        `message`: its number, which identifies a repeated call.
        """
        number, taken = message or secrets.token_hex(8), _Taken()
        for group in self._groups(gauges):
            admitted, readings = await self._take(group, number)
            if not admitted:
                await self._take_back(taken, number)
                return False, [readings.get(gauge, _NOT_COUNTED) for gauge in gauges]
            taken |= readings
        return True, [taken[gauge] for gauge in gauges]

    async def _take(self, gauges: Sequence[Gauge], message: str) -> tuple[bool, _Taken]:
        numbers = [part for gauge in gauges for part in (gauge.kind.value, gauge.limit)]
        with store_errors():
            room, *counted = await self._admit(keys=list(map(_key, gauges)), args=[message, *numbers])
        readings = [Reading(*pair) for pair in zip(counted[::2], counted[1::2], strict=True)]
        return bool(room), dict(zip(gauges, readings, strict=True))

    async def _take_back(self, taken: Iterable[Gauge], message: str) -> None:
        """Only keys have limits of messages of a day, and a key is counted last: they are never undone."""
        for gauge in taken:
            if gauge.kind is Kind.MESSAGES:
                with store_errors():
                    await self._client.zrem(_key(gauge), message)

    async def used(self, gauges: Sequence[Gauge]) -> list[int]:
        """Return the counts of gauges of a day. Raises StoreDown."""
        pipe = self._client.pipeline(transaction=False)
        for gauge in gauges:
            pipe.get(_key(gauge))
        with store_errors():
            return [int(count or 0) for count in await pipe.execute()] if gauges else []

    def _groups(self, gauges: Sequence[Gauge]) -> list[list[Gauge]]:
        """The gauges that one script call may count."""
        if not self._apart:
            return [list(gauges)]
        by_subject = sorted(gauges, key=lambda gauge: gauge.subject)
        return [list(group) for _, group in groupby(by_subject, key=lambda gauge: gauge.subject)]

    def charge(self, gauges: Sequence[Gauge], tokens: int) -> None:
        """Count tokens as soon as the store takes them."""
        self._owed.update(dict.fromkeys(gauges, tokens))
        self._wake.set()

    async def run(self) -> None:
        """Write charges until cancelled."""
        while True:
            await self._wake.wait()
            try:
                await self.settle()
            except StoreDown:
                await asyncio.sleep(AGAIN_S)

    async def settle(self) -> None:
        """Write the charges so far; those that the store may have are sent again unchanged. Raises StoreDown."""
        while self._owed:
            if self._under_way is None:
                self._charges += 1
                self._under_way = (*next(iter(self._owed.items())), self._charges)
            gauge, tokens, number = self._under_way
            with store_errors():
                await self._charge(
                    keys=[_key(gauge), f"ms:charged:{gauge.subject}"], args=[tokens, self._name, number]
                )
            self._owed -= Counter({gauge: tokens})
            self._under_way = None
        self._wake.clear()


def _key(gauge: Gauge) -> str:
    return f"ms:limit:{gauge.kind.value}:{gauge.subject}"
