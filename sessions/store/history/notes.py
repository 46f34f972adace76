"""What doors keep beside turns: how each was asked for. It goes with its conversation, or where its owner has too much of it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from redis.asyncio import Redis

from sessions.records import Owner
from sessions.store.history.keys import Keys
from sessions.store.redis.client import COUNT_NOTE, NOTE, run_script, store_errors

MOST_BYTES = 32 * 1024 * 1024
"""Of an owner, in all conversations. Beyond it the oldest leave; their turns stay in the history."""
ROW_BYTES = 128
"""What each takes beside its text, about."""


class Notes:
    """Reads and keeps them. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_ms = int(ttl_s * 1000)

    async def get(self, keys: Keys, turn_id: str) -> bytes | None:
        """What is kept beside a turn; None where there is nothing."""
        with store_errors():
            return await cast(
                "Awaitable[bytes | None]", self._client.hget(keys.conversation, _field(turn_id))
            )

    async def keep(self, owner: Owner, conversation_id: str, turn_id: str, note: bytes) -> bool:
        """Keeps it; False where there is no such turn. An owner's oldest leave where there are too many bytes of them."""
        keys = Keys.of(owner, conversation_id)
        if not await run_script(self._client, NOTE, [keys.conversation], [turn_id, note]):
            return False
        name, size = f"{turn_id} {conversation_id}", len(note) + ROW_BYTES
        args: list[str | bytes | int] = [name, size, MOST_BYTES, self._ttl_ms]
        gone: Any = await run_script(self._client, COUNT_NOTE, [_rows(owner)], args)
        for turn, _, place in (one.decode().partition(" ") for one in gone):
            with store_errors():
                await self._client.hdel(Keys.of(owner, place).conversation, _field(turn))
        return True

    async def forget_all(self, owner: Owner) -> None:
        """Forgets which ones an owner has: their conversations are gone."""
        with store_errors():
            await self._client.unlink(_rows(owner))


def _field(turn_id: str) -> str:
    return f"note:{turn_id}"


def _rows(owner: Owner) -> str:
    return f"ms:notes:{{{owner}}}"
