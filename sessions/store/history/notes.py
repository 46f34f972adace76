"""Notes that endpoints keep with turns: how each was asked for. A note is deleted with its conversation, or when its owner has too many bytes of them.

A conversation has a description, too, if its client began it without a message.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import Any, cast

from redis.asyncio import Redis

from sessions.limits.shares import Subject
from sessions.records import Owner
from sessions.store.history.codec import Keys, now_ms
from sessions.store.ledger import Ledger
from sessions.store.redis.client import COUNT_NOTE, DESCRIBE, NOTE, run_script
from sessions.store_errors import store_errors

MOST_BYTES = 32 * 1024 * 1024
"""Bytes of an owner's notes in all conversations. Beyond it the oldest are deleted; their turns stay."""
ROW_BYTES = 128
"""Bytes of a note beside its text, approximately."""


class Notes:
    """Reads and keeps them. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._ttl_ms = int(ttl_s * 1000)

    async def get(self, keys: Keys, turn_id: str) -> bytes | None:
        """Return the note beside a turn; None if there is none."""
        with store_errors():
            return await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, _field(turn_id))
            )

    async def keep(self, owner: Owner, conversation_id: str, turn_id: str, note: bytes) -> bool:
        """Keep a note; False if there is no such turn. Deletes the owner's oldest notes beyond the limit."""
        keys = Keys.of(owner, conversation_id)
        weighed = await run_script(self._client, NOTE, [keys.conversation], [turn_id, note, self._ttl_ms])
        if weighed is None:
            return False
        self._ledger.memory.grew(len(note))
        self._ledger.recharge(str(owner), weighed)
        name, size = f"{turn_id} {conversation_id}", len(note) + ROW_BYTES
        args: list[str | bytes | int] = [name, size, MOST_BYTES, self._ttl_ms]
        gone: Any = await run_script(self._client, COUNT_NOTE, [_rows(owner)], args)
        for turn, _, conversation in (one.decode().partition(" ") for one in gone):
            with store_errors():
                await self._client.hdel(Keys.of(owner, conversation).conversation, _field(turn))
        return True

    async def description(self, keys: Keys) -> bytes | None:
        """Return the description of a conversation; None if it has none."""
        with store_errors():
            return await cast("Awaitable[bytes | None]", self._client.hget(keys.conversation, "description"))

    async def describe(
        self, owner: Owner, conversation_id: str, text: bytes, *, new: bool, group: str
    ) -> bool:
        """Describe a conversation, a `new` one without messages or one that exists; False if a new one exists, or an old one does not.

        `group`: as in `Subject`. Raises StoreFull too.
        """
        keys = Keys.of(owner, conversation_id)
        await self._ledger.admit(Subject(str(owner), group), ROW_BYTES + len(text), lifetime_s=0)
        epoch = secrets.token_hex(8) if new else ""
        weighed = await run_script(
            self._client, DESCRIBE, [keys.conversation], [epoch, now_ms(), text, self._ttl_ms, group]
        )
        if weighed is None:
            return False
        self._ledger.memory.grew(len(text))
        self._ledger.recharge(str(owner), weighed)
        return True

    async def forget(self, keys: Keys, turn_id: str) -> None:
        """Forgets what is kept beside a turn."""
        with store_errors():
            await self._client.hdel(keys.conversation, _field(turn_id))

    async def forget_all(self, owner: Owner) -> None:
        """Delete an owner's list of notes: their conversations are gone."""
        with store_errors():
            await self._client.unlink(_rows(owner))


def _field(turn_id: str) -> str:
    return f"note:{turn_id}"


def _rows(owner: Owner) -> str:
    return f"ms:notes:{{{owner}}}"
