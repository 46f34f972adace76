"""The limits of clients and keys: their numbers, their subjects, and the result of a count. Pure.

An API key's own terms replace the limits of the settings. A client is a `client_id` of a principal; a key is a principal with
all of its clients. Without authentication all share one principal, so a key's limits then hold for each client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

import msgspec

from connections.authentication.api_keys import NO_ALLOWANCE, Allowance
from connections.authentication.identity import ANONYMOUS, KEY
from connections.protocol.frames import LimitNear
from sessions.errors import Refused
from sessions.records import Client

NEAR_LIMIT_FRACTION = 5
"""A limit is near if no more than one part in so many is left."""


class QuotaKind(StrEnum):
    """The counted quantity: messages of the last minute; or messages, replies or tokens of the day in UTC."""

    MESSAGES = "messages"
    TODAY = "today"
    REPLIES = "replies"
    """These have no limit: they are an API key's usage."""
    TOKENS = "tokens"


UNLIMITED = 2**53 - 1
"""The gauge of a count without a limit."""


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


class RateLimited(Refused):
    """A limit has no room for the message. `retry_after_ms`: the time until it has."""

    code = "rate_limited"
    retryable = True

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms

    @classmethod
    def by(cls, quota: Quota, reading: QuotaUsage) -> Self:
        """Make one for a limit that all replicas count."""
        when = f"in {math.ceil(reading.reset_ms / 1000)} s"
        why = f"The limit of {quota.limit} is reached ({quota.name}); try again {when}."
        return cls(why, reading.reset_ms)


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits; None: no limit."""

    messages_per_minute: int | None = None
    key_messages_per_minute: int | None = None
    tokens_per_day: int | None = None
    key_tokens_per_day: int | None = None

    @property
    def shown(self) -> int | None:
        """Return the most messages a minute that any client may send; None: there is no bound."""
        numbers = (self.messages_per_minute, self.key_messages_per_minute)
        return min((number for number in numbers if number is not None), default=None)

    def of(self, allowance: Allowance) -> QuotaSettings:
        """Return the limits for a key with terms of its own."""
        return msgspec.structs.replace(
            self,
            key_messages_per_minute=allowance.messages_per_minute or self.key_messages_per_minute,
            key_tokens_per_day=allowance.tokens_per_day or self.key_tokens_per_day,
        )

    def gauges(self, client: Client, allowance: Allowance = NO_ALLOWANCE) -> tuple[Quota, ...]:
        """Return the limits of a client whose key has such terms.

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
    tag = str(client) if client.principal == ANONYMOUS.principal else client.principal
    return f"client:{{{client}}}", f"key:{{{tag}}}"


def usage_quotas(client: Client) -> tuple[Quota, ...]:
    """Return the usage that is counted for an API key even without limits: replies and tokens of the day. None for others."""
    if not client.principal.startswith(KEY):
        return ()
    _, key = quota_subjects(client)
    return tuple(Quota(kind.value, kind, key, UNLIMITED) for kind in (QuotaKind.REPLIES, QuotaKind.TOKENS))


def quota_warnings(
    gauges: Sequence[Quota], usages: Sequence[QuotaUsage], *, admitted: bool
) -> list[LimitNear]:
    """Return the warnings for a counted message. Raises RateLimited if it was not counted."""
    read = list(zip(gauges, usages, strict=True))
    if not admitted:
        quota, reading = max(
            (pair for pair in read if pair[1].used >= pair[0].limit), key=lambda pair: pair[1].reset_ms
        )
        raise RateLimited.by(quota, reading)
    return [
        LimitNear(name=quota.name, remaining=left, reset_s=math.ceil(reading.reset_ms / 1000))
        for quota, reading in read
        if (left := max(0, quota.limit - reading.used)) * NEAR_LIMIT_FRACTION <= quota.limit
    ]
