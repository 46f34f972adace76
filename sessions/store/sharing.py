"""Shares: conversations that anybody with a link can read. A share names a branch at one moment; the history has the texts.

A share has two records that must agree, the link's and the conversation's. So neither a lost record nor a deleted conversation
is ever readable. It lasts as long as its conversation, if it is read meanwhile.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Any, Literal

import msgspec
from redis.asyncio import Redis

from sessions.errors import NotFound
from sessions.events import Languages
from sessions.records import MessageRecord, Owner
from sessions.store.history.codec import Keys
from sessions.store.history.history import History
from sessions.store.history.index import languages
from sessions.store.redis.client import SHARE, run_script
from sessions.store_errors import store_errors

PAGE = 100
"""Messages that are read at once."""
PAGE_BYTES = 256 * 1024
"""Bytes of their texts, approximately; one message is always returned."""
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_GONE = "There is no such shared conversation, or it is no longer shared."


class SharedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for readers of a share: without reasoning, calls and other branches. `created_at`: Unix milliseconds."""

    message_id: str
    role: Literal["user", "assistant"]
    content: str
    status: str
    created_at: int
    model: str | None = None


class SharedPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages, oldest first. `next`: the cursor of older ones; None if there are none.

    `interprets`: the title stands for the languages of a live translation.
    """

    title: str
    messages: list[SharedMessage]
    next: str | None = None
    interprets: Languages | None = None


class _Share(msgspec.Struct, array_like=True, frozen=True):
    """A share. `chars`: characters of its leaf, which may be continued later. `secret`: signs cursors, so that none leads to another branch."""

    conversation: str
    leaf: str
    chars: int
    secret: str

    def cursor(self, message_id: str) -> str:
        """Return the cursor of this message and those before it."""
        signed = hmac.new(self.secret.encode(), message_id.encode(), hashlib.sha256)
        return f"{message_id}.{signed.hexdigest()[:32]}"

    def message_of_cursor(self, cursor: str) -> str:
        """Return the message of a cursor. Raises NotFound for one that this share did not sign."""
        message_id = cursor.rpartition(".")[0]
        if not hmac.compare_digest(self.cursor(message_id).encode(), cursor.encode()):
            raise NotFound("`before` is not the `next` of a page of this conversation.")
        return message_id


class Sharing:
    """Stores shares of conversations. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, history: History, ttl_s: float) -> None:
        """`ttl_s`: seconds for which a share is kept that nobody reads."""
        self._client = client
        self._history = history
        self._ttl_ms = int(ttl_s * 1000)

    async def share(self, owner: Owner, conversation_id: str) -> str:
        """Share the current active branch; return the link's id, the same one each time. Raises NotFound too."""
        keys = Keys.of(owner, conversation_id)
        named = await run_script(self._client, SHARE, [keys.conversation], [secrets.token_urlsafe(16)])
        if named is None:
            raise NotFound(f'There is no conversation "{conversation_id}".')
        share_id, leaf = (part.decode() for part in named)
        newest = (await self._history.branch(keys, leaf=leaf, limit=1)).messages[-1:]
        last, chars = (newest[0].message_id, len(newest[0].content)) if newest else (leaf, 0)
        kept = msgspec.json.encode(_Share(keys.conversation, last, chars, secrets.token_urlsafe(16)))
        with store_errors():
            await self._client.set(_key(share_id), kept, px=self._ttl_ms)
        return str(share_id)

    async def take_back(self, owner: Owner, conversation_id: str) -> None:
        """Revoke the link of a conversation, if there is one."""
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
            known: Any = await self._client.hmget(keys.conversation, ["share", "title", "interprets"])
        half, title, interprets = known
        if half is None or not secrets.compare_digest(half, share_id.encode()):
            raise NotFound(_GONE)
        leaf = share.leaf if before is None else share.message_of_cursor(before)
        messages, older = await self._branch(keys, leaf)
        shown = [_shown(message, share) for message in messages]
        cursor = None if older is None else share.cursor(older)
        return SharedPage(title=title.decode(), messages=shown, next=cursor, interprets=languages(interprets))

    async def _branch(self, keys: Keys, leaf: str) -> tuple[list[MessageRecord], str | None]:
        """Return the messages of a page, and the one before them."""
        branch = await self._history.branch(keys, leaf=leaf, limit=PAGE, most_bytes=PAGE_BYTES)
        left_bytes, kept = PAGE_BYTES, 0
        for message in reversed(branch.messages):
            left_bytes -= len(message.content.encode())
            if left_bytes < 0 and kept:
                break
            kept += 1
        left = len(branch.messages) - kept
        older = branch.messages[left - 1].message_id if left else branch.older
        return branch.messages[left:], older


def _shown(message: MessageRecord, share: _Share) -> SharedMessage:
    is_leaf = message.message_id == share.leaf
    return SharedMessage(
        message_id=message.message_id,
        role=message.role,
        content=message.content[: share.chars] if is_leaf else message.content,
        status=message.status,
        created_at=message.created_at,
        model=message.model,
    )


def _key(share_id: str) -> str:
    return f"ms:share:{{{share_id}}}"
