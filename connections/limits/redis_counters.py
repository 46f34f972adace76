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

from connections.limits.quotas import Quota, QuotaKind, QuotaUsage
from sessions.errors import StoreDown
from sessions.store.redis.client import store_errors

LUA = Path(__file__).parent / "lua"
RETRY_S = 1.0

_Usages = dict[Quota, QuotaUsage]
_NOT_COUNTED = QuotaUsage(0, 0)
"""The reading of a limit that counted nothing, since another one has no room."""


class RedisCounters:
    """`Counts` (`connections.limits.quota_limiter`). `run` must be running for tokens to be counted.

    It uses its own script instead of the `limits` package, which calls the store once for each limit, and counts messages that
    a later limit refuses. The client retries calls, so messages and charges have numbers by which the store recognises them.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._is_cluster = isinstance(cast("object", client), RedisCluster)
        self._admit = client.register_script((LUA / "admit.lua").read_text())
        self._charge = client.register_script((LUA / "charge.lua").read_text())
        self._name = secrets.token_hex(4)
        self._charges = 0
        self._under_way: tuple[Quota, int, int] | None = None
        self._owed: Counter[Quota] = Counter()
        self._wake = asyncio.Event()

    async def take(
        self, quota_list: Sequence[Quota], *, message: str | None = None
    ) -> tuple[bool, list[QuotaUsage]]:
        """Count a message if every limit has room. Raises StoreDown.

        `message`: its number, which identifies a repeated call.
        """
        number, taken = message or secrets.token_hex(8), _Usages()
        for group in self._groups(quota_list):
            admitted, usages = await self._take(group, number)
            if not admitted:
                await self._take_back(taken, number)
                return False, [usages.get(quota, _NOT_COUNTED) for quota in quota_list]
            taken |= usages
        return True, [taken[quota] for quota in quota_list]

    async def _take(self, quota_list: Sequence[Quota], message: str) -> tuple[bool, _Usages]:
        numbers = [part for quota in quota_list for part in (quota.kind.value, quota.limit)]
        with store_errors():
            is_admitted, *counted = await self._admit(
                keys=list(map(_key, quota_list)), args=[message, *numbers]
            )
        usages = [QuotaUsage(*pair) for pair in zip(counted[::2], counted[1::2], strict=True)]
        return bool(is_admitted), dict(zip(quota_list, usages, strict=True))

    async def _take_back(self, taken: Iterable[Quota], message: str) -> None:
        """Only keys have limits of messages of a day, and a key is counted last: they are never undone."""
        for quota in taken:
            if quota.kind is QuotaKind.MESSAGES:
                with store_errors():
                    await self._client.zrem(_key(quota), message)

    async def used(self, quota_list: Sequence[Quota]) -> list[int]:
        """Return the counts of gauges of a day. Raises StoreDown."""
        pipe = self._client.pipeline(transaction=False)
        for quota in quota_list:
            pipe.get(_key(quota))
        with store_errors():
            return [int(count or 0) for count in await pipe.execute()] if quota_list else []

    def _groups(self, quota_list: Sequence[Quota]) -> list[list[Quota]]:
        """The gauges that one script call may count."""
        if not self._is_cluster:
            return [list(quota_list)]
        by_subject = sorted(quota_list, key=lambda quota: quota.subject)
        return [list(group) for _, group in groupby(by_subject, key=lambda quota: quota.subject)]

    def charge(self, quota_list: Sequence[Quota], tokens: int) -> None:
        """Count tokens as soon as the store takes them."""
        self._owed.update(dict.fromkeys(quota_list, tokens))
        self._wake.set()

    async def run(self) -> None:
        """Write charges until cancelled."""
        while True:
            await self._wake.wait()
            try:
                await self.settle()
            except StoreDown:
                await asyncio.sleep(RETRY_S)

    async def settle(self) -> None:
        """Write the charges so far; those that the store may have are sent again unchanged. Raises StoreDown."""
        while self._owed:
            if self._under_way is None:
                self._charges += 1
                self._under_way = (*next(iter(self._owed.items())), self._charges)
            quota, tokens, number = self._under_way
            with store_errors():
                await self._charge(
                    keys=[_key(quota), f"ms:charged:{quota.subject}"], args=[tokens, self._name, number]
                )
            self._owed -= Counter({quota: tokens})
            self._under_way = None
        self._wake.clear()


def _key(quota: Quota) -> str:
    return f"ms:limit:{quota.kind.value}:{quota.subject}"
