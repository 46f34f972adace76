"""What all replicas count together, in the store: quotas of messages and tokens.

A store that does not answer within `TIMEOUT_S` refuses nobody.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import cast

import msgspec
import structlog
from redis.asyncio import Redis, RedisCluster

from sessions.errors import StoreDown, StoreFault
from sessions.events import Done
from sessions.limits.bounds import NEAR_LIMIT_FRACTION
from sessions.limits.rates import RateLimited
from sessions.limits.slots import never_heavy, with_heaviness
from sessions.observer import Observer
from sessions.records import ANONYMOUS_PRINCIPAL, KEY, Client
from sessions.store_errors import store_errors

LUA = Path(__file__).parent / "lua"
TIMEOUT_S = 0.25
RETRY_S = 1.0
BACKOFF_S = 1.0
"""How long a sender's counts are not read after a failure; nobody's, once `MAX_FAILING_CLIENTS` senders failed."""
MAX_FAILING_CLIENTS = 16
"""Failures of senders without a success in between: then the whole store is taken to be away."""
MAX_BACKED_OFF_CLIENTS = 1024
"""Senders with remembered failures; beyond it all are forgotten and tried again."""
UNLIMITED = 2**53 - 1
"""The gauge of a count without a limit."""
_log = structlog.get_logger("midstream.limits")


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """A key's own limits; None: that of the settings."""

    messages_per_minute: int | None = None
    messages_per_day: int | None = None
    tokens_per_day: int | None = None


NO_ALLOWANCE = Allowance()


class QuotaKind(StrEnum):
    """The counted quantity: messages of the last minute; or messages, replies or tokens of the day in UTC."""

    MESSAGES = "messages"
    TODAY = "today"
    REPLIES = "replies"
    """Counted without a limit, as an API key's usage."""
    TOKENS = "tokens"


class Quota(msgspec.Struct, frozen=True):
    """One limit of one client or key. `name`: the setting's; `subject`: the client or key, as one word for the store."""

    name: str
    kind: QuotaKind
    subject: str
    limit: int


class QuotaUsage(msgspec.Struct, frozen=True):
    """A count, which includes the message if there was room. `reset_ms`: the time until there is more room."""

    used: int
    reset_ms: int


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits; None: no limit."""

    messages_per_minute: int | None = None
    key_messages_per_minute: int | None = None
    tokens_per_day: int | None = None
    key_tokens_per_day: int | None = None

    @property
    def shown(self) -> int | None:
        """Return how many messages a client may send per minute; None: no bound."""
        numbers = (self.messages_per_minute, self.key_messages_per_minute)
        return min((number for number in numbers if number is not None), default=None)

    def of(self, allowance: Allowance) -> QuotaSettings:
        """Return the limits for a key with an allowance of its own."""
        return msgspec.structs.replace(
            self,
            key_messages_per_minute=allowance.messages_per_minute or self.key_messages_per_minute,
            key_tokens_per_day=allowance.tokens_per_day or self.key_tokens_per_day,
        )

    def gauges(self, client: Client, allowance: Allowance = NO_ALLOWANCE) -> tuple[Quota, ...]:
        """Return the limits of a client whose key has `allowance`.

        Messages of a day are counted together with those of a minute, which recognise a repeated request.
        """
        own, key = quota_subjects(client)
        limits, a_day = self.of(allowance), allowance.messages_per_day
        a_minute = limits.key_messages_per_minute or (None if a_day is None else UNLIMITED)
        every = (
            ("messages_per_minute", QuotaKind.MESSAGES, own, limits.messages_per_minute),
            ("key_messages_per_minute", QuotaKind.MESSAGES, key, a_minute),
            ("key_messages_per_day", QuotaKind.TODAY, key, a_day),
            ("tokens_per_day", QuotaKind.TOKENS, own, limits.tokens_per_day),
            ("key_tokens_per_day", QuotaKind.TOKENS, key, limits.key_tokens_per_day),
        )
        return tuple(
            Quota(name, kind, subject, limit) for name, kind, subject, limit in every if limit is not None
        )


def quota_subjects(client: Client) -> tuple[str, str]:
    """Return the store's names of the client and its key. Each has a hash tag, so that no slot counts for all."""
    tag = str(client) if client.principal == ANONYMOUS_PRINCIPAL else client.principal
    return f"client:{{{client}}}", f"key:{{{tag}}}"


def usage_quotas(client: Client) -> tuple[Quota, ...]:
    """Return the usage that is counted for an API key even without limits: replies and tokens of the day. Others have none."""
    if not client.principal.startswith(KEY):
        return ()
    _, key = quota_subjects(client)
    return tuple(Quota(kind.value, kind, key, UNLIMITED) for kind in (QuotaKind.REPLIES, QuotaKind.TOKENS))


class QuotaLimiter(Observer):
    """The limits of messages and tokens, for every connection of this replica. `quotas` may change at any time.

    It observes turns, to count their tokens.
    """

    def __init__(
        self,
        quotas: QuotaSettings,
        counts: RedisCounters,
        *,
        allowance_of: Callable[[str], Allowance] = lambda _: NO_ALLOWANCE,
    ) -> None:
        """`allowance_of`: returns the limits of a principal's key."""
        self.quotas = quotas
        self._allowance_of = allowance_of
        self._counts = counts
        self._backed_off: dict[Client, float] = {}  # until when
        self._failing: set[Client] = set()  # since the last answer
        self._all_backed_off_until = 0.0

    def shown(self, client: Client) -> int | None:
        """Return how many messages `client` may send per minute; None: no bound."""
        return self.quotas.of(self._allowance_of(client.principal)).shown

    def limits(self, client: Client) -> bool:
        """Return whether a client's messages have to be counted."""
        return bool(self._gauges(client))

    def _gauges(self, client: Client) -> tuple[Quota, ...]:
        return self.quotas.gauges(client, self._allowance_of(client.principal))

    async def admit(self, client: Client) -> list[NearLimit]:
        """Count a message; return the limits that are near. Raises RateLimited."""
        gauges = self._gauges(client)
        now = asyncio.get_running_loop().time
        if not gauges or now() < max(self._all_backed_off_until, self._backed_off.get(client, 0.0)):
            return []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with with_heaviness(never_heavy):  # a timeout behind other work would lift the limits
                    admitted, usages = await self._counts.take(gauges)
        except StoreFault:  # logged there; this sender's counts are unreadable, while the store works
            return []
        except (StoreDown, TimeoutError):
            self._back_off(client, until=now() + BACKOFF_S)
            return []
        self._failing.clear()
        return near_limits(gauges, usages, admitted=admitted)

    def _back_off(self, client: Client, *, until: float) -> None:
        if len(self._backed_off) >= MAX_BACKED_OFF_CLIENTS:
            self._backed_off.clear()
        self._backed_off[client] = until
        self._failing.add(client)
        if len(self._failing) >= MAX_FAILING_CLIENTS:
            self._failing.clear()
            self._all_backed_off_until = until
        if len(self._failing) <= 1:  # the first, or all
            _log.warning("quota check failed, messages admitted uncounted")

    def ended(self, done: Done, client: Client) -> None:
        """Count the prompt and generated tokens of an ended turn, and for an API key the reply."""
        every = self._every(client)
        if replies := [quota for quota in every if quota.kind is QuotaKind.REPLIES]:
            self._counts.charge(replies, 1)
        self.used(client, done.usage.prompt_tokens + done.usage.generated_tokens)

    def used(self, client: Client, tokens: int) -> None:
        """Count tokens."""
        subjects = {quota.subject: quota for quota in self._every(client) if quota.kind is QuotaKind.TOKENS}
        if subjects and tokens:
            self._counts.charge(list(subjects.values()), tokens)

    def _every(self, client: Client) -> tuple[Quota, ...]:
        return (*self._gauges(client), *usage_quotas(client))


class NearLimit(msgspec.Struct, frozen=True):
    """A quota of which little is left. `reset_s`: seconds until there is more."""

    name: str
    remaining: int
    reset_s: int


def near_limits(gauges: Sequence[Quota], usages: Sequence[QuotaUsage], *, admitted: bool) -> list[NearLimit]:
    """Return the limits that are near after a counted message. Raises RateLimited if it was not counted."""
    read = list(zip(gauges, usages, strict=True))
    if not admitted:
        quota, usage = max(
            (pair for pair in read if pair[1].used >= pair[0].limit), key=lambda pair: pair[1].reset_ms
        )
        when = f"in {math.ceil(usage.reset_ms / 1000)} s"
        why = f"The limit of {quota.limit} is reached ({quota.name}); try again {when}."
        raise RateLimited(why, usage.reset_ms)
    return [
        NearLimit(quota.name, left, math.ceil(usage.reset_ms / 1000))
        for quota, usage in read
        if (left := max(0, quota.limit - usage.used)) * NEAR_LIMIT_FRACTION <= quota.limit
    ]


_Usages = dict[Quota, QuotaUsage]
_NOT_COUNTED = QuotaUsage(0, 0)
"""The reading of a limit that counted nothing, since another one has no room."""


class RedisCounters:
    """The counts that all replicas share. `run` must be running for tokens to be counted.

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
        """Count a message if every limit has room; return whether, and all counts. Raises StoreDown.

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
                keys=list(map(_count_key, quota_list)), args=[message, *numbers]
            )
        usages = [QuotaUsage(*pair) for pair in zip(counted[::2], counted[1::2], strict=True)]
        return bool(is_admitted), dict(zip(quota_list, usages, strict=True))

    async def _take_back(self, taken: Iterable[Quota], message: str) -> None:
        """Undo counts of the minute. Those of the day need no undoing: only keys have them, and a key is counted last."""
        for quota in taken:
            if quota.kind is QuotaKind.MESSAGES:
                with store_errors():
                    await self._client.zrem(_count_key(quota), message)

    async def used(self, quota_list: Sequence[Quota]) -> list[int]:
        """Return the counts of gauges of a day. Raises StoreDown."""
        pipe = self._client.pipeline(transaction=False)
        for quota in quota_list:
            pipe.get(_count_key(quota))
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
                    keys=[_count_key(quota), f"ms:charged:{quota.subject}"], args=[tokens, self._name, number]
                )
            self._owed -= Counter({quota: tokens})
            self._under_way = None
        self._wake.clear()


def _count_key(quota: Quota) -> str:
    return f"ms:limit:{quota.kind.value}:{quota.subject}"
