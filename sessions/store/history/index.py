"""The list of an owner's conversations, newest first. The rows of a page are read from the conversations."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import NotFound
from sessions.events import Languages
from sessions.records import Owner
from sessions.store.history.codec import Keys
from sessions.store.ledger import Admission
from sessions.store.redis.client import RENAME, TOUCH, queue_script, run_script
from sessions.store_errors import store_errors

MAX_LISTED = 10_000
"""Conversations in an owner's list. Older ones leave it, and are found by their id until they expire."""
SLACK_MS = 2 * 24 * 3600 * 1000
"""A conversation lives so much longer than its last message: its reply may wait behind another and run for a day."""


ROW = ("title", "updated_at", "messages", "interprets")
"""The fields of a conversation's hash that make its row."""


class Listed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the list. `updated_at`: Unix milliseconds.

    `interprets`: the title stands for the languages of a live translation, and nobody has changed it.
    """

    conversation_id: str
    title: str
    updated_at: int
    messages: int
    interprets: Languages | None = None


class Page(msgspec.Struct, frozen=True):
    """Rows, newest first; `has_more` if older ones exist."""

    conversations: list[Listed]
    has_more: bool


class Index:
    """The list of conversations of each owner. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_ms = int(ttl_s * 1000)

    async def touch(self, owner: Owner, conversation_id: str) -> None:
        """Put a conversation at the head of the list, by the store's clock."""
        await self._put(owner, conversation_id, "")

    def queue_touch(
        self, pipe: Pipeline, *, owner: Owner, conversation_id: str, admission: Admission | None = None
    ) -> None:
        """The same, in a pipeline. `admission`: new bytes; without room for them nothing changes, and the answer says so."""
        ledgers, args = ((), ()) if admission is None else (admission.ledgers, admission.args)
        queue_script(
            pipe, TOUCH, [list_name(owner), *ledgers], [*self._touch_args(conversation_id, ""), *args]
        )

    async def add(self, owner: Owner, conversation_id: str, at_ms: int) -> None:
        """Put a conversation into its place in the list, unless it has moved on since."""
        await self._put(owner, conversation_id, at_ms)

    async def _put(self, owner: Owner, conversation_id: str, at_ms: int | str) -> None:
        """Each write removes expired rows, as the owner may never read the list, and rows beyond the limit."""
        await run_script(self._client, TOUCH, [list_name(owner)], self._touch_args(conversation_id, at_ms))

    def _touch_args(self, conversation_id: str, at_ms: int | str) -> list[str | bytes | int]:
        return [conversation_id, self._ttl_ms, SLACK_MS, MAX_LISTED, at_ms]

    async def newest(self, owner: Owner, *, first: int, limit: int) -> list[tuple[str, int]]:
        """Return ids with their times (Unix milliseconds), newest first, expired ones included."""
        with store_errors():
            rows: Any = await self._client.zrevrange(
                list_name(owner), first, first + limit - 1, withscores=True
            )
        return [(conversation_id.decode(), int(at_ms)) for conversation_id, at_ms in rows]

    async def forget(self, owner: Owner, conversation_id: str) -> None:
        """Remove a conversation from the list."""
        with store_errors():
            await self._client.zrem(list_name(owner), conversation_id)

    async def page(self, owner: Owner, *, limit: int, before: str | None) -> Page:
        """Return up to `limit` conversations that follow `before` in the list. Raises NotFound too."""
        with store_errors():
            first = 0
            if before is not None:
                rank: Any = await self._client.zrevrank(list_name(owner), before)
                if rank is None:
                    raise NotFound(f'`before` names no conversation of yours: "{before}".')
                first = rank + 1
            ids: Any = await self._client.zrevrange(list_name(owner), first, first + limit)
            rows = await self._rows(owner, [found.decode() for found in ids])
        listed = [row for row in rows if isinstance(row, Listed)]
        return Page(listed[:limit], len(ids) > limit)

    async def rename(self, owner: Owner, conversation_id: str, title: str) -> Listed:
        """Change a conversation's title; return its row. Raises NotFound too."""
        keys = Keys.of(owner, conversation_id)
        row = await run_script(self._client, RENAME, [keys.conversation], [title])
        if row is None:
            raise NotFound(f'There is no conversation "{conversation_id}".')
        return listed(conversation_id, row)

    async def set_title(self, owner: Owner, conversation_id: str, title: str, *, instead_of: str) -> bool:
        """Replace a conversation's title if it is still the given one; return whether it was."""
        keys = Keys.of(owner, conversation_id)
        return await run_script(self._client, RENAME, [keys.conversation], [title, instead_of]) is not None

    async def _rows(self, owner: Owner, ids: list[str]) -> list[Listed | None]:
        pipe = self._client.pipeline(transaction=False)
        for conversation_id in ids:
            pipe.hmget(Keys.of(owner, conversation_id).conversation, ROW)
        answers = zip(ids, await pipe.execute(), strict=True)
        rows = [None if values[1] is None else listed(found, values) for found, values in answers]
        expired = [found for found, row in zip(ids, rows, strict=True) if row is None]
        if expired:
            await self._client.zrem(list_name(owner), *expired)
        return rows


def listed(conversation_id: str, values: list[Any]) -> Listed:
    """Make a row from the values of `ROW`."""
    title, updated_at, messages, interprets = values
    return Listed(
        conversation_id=conversation_id,
        title=title.decode(),
        updated_at=int(updated_at),
        messages=int(messages),
        interprets=languages(interprets),
    )


def languages(kept: bytes | None) -> Languages | None:
    """Return the languages that a title stands for, as the store has them."""
    return Languages(*kept.decode().split()) if kept else None


def list_name(owner: Owner) -> str:
    """Return the store's name for an owner's list."""
    return f"ms:conversations:{{{owner}}}"
