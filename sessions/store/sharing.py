"""Conversations that may be read by whoever has a link. A share names a branch as it was; its texts stand in the history alone.

A share is two halves that must agree, the link's and the conversation's, so that neither a lost half nor a deleted conversation is
ever readable. It lasts for as long as its conversation, if somebody reads it meanwhile.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Literal

import msgspec
from redis.asyncio import Redis

from sessions.errors import NotFound
from sessions.records import MessageRecord, Owner
from sessions.store.history.history import History
from sessions.store.history.keys import Keys
from sessions.store.redis.client import SHARE, run_script, store_errors

PAGE = 100
"""Messages that are read at once."""
PAGE_BYTES = 256 * 1024
"""Of their texts, about; one message is told in any case."""
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_GONE = "There is no such shared conversation, or it is shared no more."


class SharedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader sees of a message: neither reasoning, nor calls, nor other branches. `created_at`: Unix milliseconds."""

    message_id: str
    role: Literal["user", "assistant"]
    content: str
    status: str
    created_at: int
    model: str | None = None


class SharedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages oldest first; `has_more` where older ones exist."""

    title: str
    messages: list[SharedMessage]
    has_more: bool


class _Share(msgspec.Struct, array_like=True, frozen=True):
    conversation: str
    leaf: str


class Sharing:
    """Shares of conversations. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, history: History, ttl_s: float) -> None:
        """`ttl_s`: seconds that a share is kept which nobody reads."""
        self._client = client
        self._history = history
        self._ttl_ms = int(ttl_s * 1000)

    async def share(self, owner: Owner, conversation_id: str) -> str:
        """Share the active branch as it is now; return the id of the link, the same one each time. Raises NotFound too."""
        keys = Keys.of(owner, conversation_id)
        named = await run_script(self._client, SHARE, [keys.conversation], [secrets.token_urlsafe(16)])
        if named is None:
            raise NotFound(f'There is no conversation "{conversation_id}".')
        share_id, leaf = (part.decode() for part in named)
        kept = msgspec.json.encode(_Share(keys.conversation, leaf))
        with store_errors():
            await self._client.set(_key(share_id), kept, px=self._ttl_ms)
        return str(share_id)

    async def take_back(self, owner: Owner, conversation_id: str) -> None:
        """Make the link of a conversation lead nowhere; nothing where there is none."""
        keys = Keys.of(owner, conversation_id)
        with store_errors():
            share_id: Any = await self._client.hget(keys.conversation, "share")
            if share_id is not None:
                await self._client.hdel(keys.conversation, "share")
                await self._client.delete(_key(share_id.decode()))

    async def read(self, share_id: str, *, before: str | None) -> SharedPage:
        """Return the newest messages of a share, or those before one of them. Raises NotFound too."""
        if _ID.fullmatch(share_id) is None:
            raise NotFound(_GONE)
        with store_errors():
            kept: Any = await self._client.getex(_key(share_id), px=self._ttl_ms)
        if kept is None:
            raise NotFound(_GONE)
        share = msgspec.json.decode(kept, type=_Share)
        keys = Keys.named(share.conversation)
        with store_errors():
            halves: Any = await self._client.hmget(keys.conversation, ["share", "title"])
        if halves[0] is None or not secrets.compare_digest(halves[0], share_id.encode()):
            raise NotFound(_GONE)
        leaf = share.leaf if before is None else await self._history.parent(keys, before)
        if leaf is None:
            raise NotFound("`before` names no message of this conversation.")
        messages, older = ([], None) if leaf == "" else await self._branch(keys, leaf)
        title = halves[1].decode()
        return SharedPage(title=title, messages=messages, has_more=older is not None)

    async def _branch(self, keys: Keys, leaf: str) -> tuple[list[SharedMessage], str | None]:
        branch = await self._history.branch(keys, leaf=leaf, limit=PAGE)
        room, kept = PAGE_BYTES, 0
        for message in reversed(branch.messages):
            room -= len(message.content.encode())
            if room < 0 and kept:
                break
            kept += 1
        shown = [_shown(message) for message in branch.messages[len(branch.messages) - kept :]]
        is_cut = kept < len(branch.messages)
        return shown, branch.messages[0].message_id if is_cut else branch.older


def _shown(message: MessageRecord) -> SharedMessage:
    return SharedMessage(
        message_id=message.message_id,
        role=message.role,
        content=message.content,
        status=message.status,
        created_at=message.created_at,
        model=message.model,
    )


def _key(share_id: str) -> str:
    return f"ms:share:{{{share_id}}}"
