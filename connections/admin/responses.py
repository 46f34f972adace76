"""The answers of the admin API."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from connections.admin.replica_requests import ConnectionRow, TurnRow
from connections.authentication.api_keys import ApiKey


class ConnectionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """`next`: what `after` is for the next page; null: there is none. `silent`: replicas that did not answer."""

    connections: tuple[ConnectionRow, ...]
    next: str | None
    silent: tuple[str, ...]


class TurnsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The same of turns."""

    turns: tuple[TurnRow, ...]
    next: str | None
    silent: tuple[str, ...]


class Disconnected(msgspec.Struct, frozen=True, kw_only=True):
    """The number of ended connections."""

    connections: int
    silent: tuple[str, ...]


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """An ended turn. `already`: its end was decided before."""

    turn_id: str
    already: bool


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key, its terms, and its usage since midnight UTC. `messages_today` null: without a limit they are not counted."""

    name: str
    kind: str
    note: str
    expires_at: str | None
    expired: bool
    scopes: tuple[str, ...]
    models: tuple[str, ...]
    messages_per_minute: int | None
    messages_per_day: int | None
    tokens_per_day: int | None
    messages_today: int | None
    replies_today: int
    tokens_today: int

    @classmethod
    def of(cls, key: ApiKey, used: tuple[int, int, int], *, now: float) -> KeyRow:
        """`used`: messages, replies, tokens."""
        policy, at = key.policy, key.policy.expires_at
        messages, replies, tokens = used
        return cls(
            name=key.name,
            kind=key.kind,
            note=key.note,
            expires_at=None if at is None else datetime.fromtimestamp(at, UTC).isoformat(),
            expired=policy.has_expired(now),
            scopes=tuple(sorted(policy.grant.scopes)),
            models=tuple(sorted(policy.grant.models)),
            messages_per_minute=policy.allowance.messages_per_minute,
            messages_per_day=policy.allowance.messages_per_day,
            tokens_per_day=policy.allowance.tokens_per_day,
            messages_today=None if policy.allowance.messages_per_day is None else messages,
            replies_today=replies,
            tokens_today=tokens,
        )


class KeysPage(msgspec.Struct, frozen=True, kw_only=True):
    """Keys by name."""

    keys: tuple[KeyRow, ...]
    next: str | None
