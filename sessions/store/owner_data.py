"""All stored data of an owner: export, restore and erasure; and shares, which anybody with a link can read.

A share names a branch at one moment (the history has the texts). Its two records must agree: the link's and the
conversation's. So a share with a lost record, or of a deleted conversation, can't be read. A share lasts as long as its
conversation, if it is read now and then.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis

from engine.vision.image import Image
from sessions.errors import NotFound
from sessions.events import Languages, ShownCall
from sessions.limits.slots import as_service
from sessions.records import MessageRecord, Owner
from sessions.store.client import RENEW, SHARE, hash_fields, run_script
from sessions.store.codec import Keys
from sessions.store.history import History, message_at
from sessions.store.images import Images
from sessions.store.index import languages, list_name
from sessions.store.server_config import scan_keys
from sessions.store_errors import store_errors

AT_ONCE = 16
"""Messages that are read at once; each may be as long as the model's window."""
SCANNED_AT_ONCE = 32
"""Conversations in work at the same time: as many as the client has connections."""
PAGE = 100
"""Messages of a share's page."""
PAGE_BYTES = 256 * 1024
"""Bytes of a page's texts, approximately; a page has at least one message."""
_MESSAGE = "message:"
_NAMED = re.compile(r"ms:(conversations:)?\{(.*)\}(?::images)?", re.DOTALL)
"""Names of a conversation's hash, of its images (which may exist without the hash), or of an owner's list."""
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_GONE = "This conversation does not exist, or is no longer shared."


class ExportedMessage(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="message"
):
    """A stored message, of any branch. `created_at`: Unix milliseconds."""

    conversation_id: str
    message_id: str
    parent_id: str | None
    role: str
    content: str
    status: str
    created_at: int
    model: str | None = None
    reasoning: str = ""
    calls: tuple[ShownCall, ...] = ()
    images: tuple[Image, ...] = ()

    @classmethod
    def of(cls, conversation_id: str, message: MessageRecord, images: Mapping[str, Image]) -> ExportedMessage:
        """Make one from its record. `images`: those that still exist, by digest."""
        return cls(
            conversation_id=conversation_id,
            message_id=message.message_id,
            parent_id=message.parent_id,
            role=message.role,
            content=message.content,
            status=message.status,
            created_at=message.created_at,
            model=message.model,
            reasoning=message.reasoning,
            calls=tuple(call.shown() for call in message.calls),
            images=tuple(images.get(image.digest, image) for image in message.images),
        )


class ExportedConversation(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="conversation"
):
    """A conversation's facts. `active`: the newest message of the active branch.

    `client_id`: the client that it belongs to, if no person owns it. Two clients may use the same id.
    """

    conversation_id: str
    title: str
    updated_at: int
    system: str = ""
    active: str | None = None
    client_id: str | None = None


class OwnedConversation(msgspec.Struct, frozen=True):
    """A conversation. `holder`: the person, or one of their clients, under whose name it is stored."""

    holder: Owner
    conversation_id: str


class OwnerData:
    """Reads what an owner has. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, history: History, images: Images) -> None:
        self._client = client
        self._images = images
        self._history = history
        self._scan_lock = asyncio.Lock()

    async def conversations(self, owner: Owner, *, unlisted: bool = True) -> AsyncIterator[OwnedConversation]:
        """Yield each conversation once: those of the list, newest first, then the others.

        `unlisted`: find the others, too, by a scan of all keys of the store. Only one scan runs at a time, since it costs the
        store much.
        """
        seen = set()
        for conversation_id in await self._listed(owner):
            seen.add(one := OwnedConversation(owner, conversation_id))
            yield one
        if unlisted:
            async with self._scan_lock:
                with as_service():  # other callers may wait for this scan
                    others = {one: None async for one in self._unlisted(owner) if one not in seen}
            for one in others:
                yield one

    async def _listed(self, owner: Owner) -> list[str]:
        with store_errors():
            names = await cast("Awaitable[list[bytes]]", self._client.zrevrange(list_name(owner), 0, -1))
        return [name.decode() for name in names]

    async def _unlisted(self, owner: Owner) -> AsyncIterator[OwnedConversation]:
        """Yield an owner's conversations by the names of keys; some more than once."""
        whose = owner.principal if owner.is_person else str(owner)
        async for name in scan_keys(self._client, f"ms:*{{{_literal(whose)}/*}}*"):
            named = _NAMED.fullmatch(name)
            if named is None:
                continue
            is_list, tag = named.groups()
            holder, _, conversation_id = (f"{tag}/" if is_list else tag).rpartition("/")
            found = Owner(owner.principal, holder.removeprefix(f"{owner.principal}/"))
            # one owner's name may be a prefix of another's; ids have no slash
            if str(found) != holder or not (found == owner or owner.is_person):
                continue
            for one in await self._listed(found) if is_list else [conversation_id]:
                yield OwnedConversation(found, one)

    async def conversation(self, owner: Owner, conversation_id: str) -> ExportedConversation | None:
        """Return the facts of a conversation; None if it is gone."""
        meta = await self._history.load(Keys.of(owner, conversation_id))
        if meta is None:
            return None
        return ExportedConversation(
            conversation_id=conversation_id,
            title=meta.title,
            updated_at=meta.updated_at,
            system=meta.system,
            active=meta.leaf,
            client_id=owner.client_id or None,
        )

    async def messages(self, owner: Owner, conversation_id: str) -> AsyncIterator[ExportedMessage]:
        """Yield all messages of all branches, oldest first. Only some are in memory at a time."""
        keys = Keys.of(owner, conversation_id)
        with store_errors():
            fields: Any = await cast("Awaitable[list[bytes]]", self._client.hkeys(keys.conversation))
        ids = [name.decode().removeprefix(_MESSAGE) for name in fields if name.startswith(_MESSAGE.encode())]
        came: list[tuple[int, str]] = []
        for some in _parts(ids):
            came += [(message.created_at, message.message_id) for message in await self._read(keys, some)]
        for some in _parts([message_id for _, message_id in sorted(came)]):
            for message in await self._read(keys, some):
                shown = await self._images.read(keys, [image.digest for image in message.images])
                yield ExportedMessage.of(conversation_id, message, shown)

    async def _read(self, keys: Keys, ids: Sequence[str]) -> list[MessageRecord]:
        fields = [f"{part}:{message_id}" for message_id in ids for part in ("message", "parent", "calls")]
        read = iter(await hash_fields(self._client, keys.conversation, *fields))
        rows = list(zip(ids, *[read] * 3, strict=True))
        calls = [call.decode() for *_, made in rows for call in (made or b"").split()]
        named = [f"call:{call}" for call in calls]
        kept = await hash_fields(self._client, keys.conversation, *named) if calls else []
        records = dict(zip(calls, kept, strict=True))
        return [
            message_at(
                message_id,
                message,
                parent or b"",
                [part for call in (made or b"").split() for part in (call, records[call.decode()] or b"")],
            )
            for message_id, message, parent, made in rows
            if message is not None
        ]


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + AT_ONCE] for first in range(0, len(ids), AT_ONCE))


def _literal(name: str) -> str:
    """Escape a name for a pattern of Redis."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", name)


async def begin_epochs(client: Redis) -> int:
    """Begin a new epoch in every conversation; return their number. Raises StoreDown.

    A restored store uses old seqs again, for other events. With a new epoch, a client that saw the old events is sent
    a gap with a snapshot. Doing this twice does no harm.
    """
    total = 0
    async for names in _scanned(client):
        total += sum(await asyncio.gather(*(_begin(client, name) for name in names)))
    return total


async def _begin(client: Redis, name: str) -> bool:
    [epoch] = await hash_fields(client, name, "epoch")
    if epoch is None:  # it expired meanwhile
        return False
    return await run_script(client, RENEW, [name], [epoch, secrets.token_hex(8)]) is not None


async def _scanned(client: Redis) -> AsyncIterator[list[str]]:
    part: list[str] = []
    async for name in scan_keys(client, "ms:{*}", kind="HASH"):
        part.append(name)
        if len(part) == SCANNED_AT_ONCE:
            yield part
            part = []
    if part:
        yield part


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

    `interprets`: a live translation's languages, which the title shows.
    """

    title: str
    messages: list[SharedMessage]
    next: str | None = None
    interprets: Languages | None = None


class _Share(msgspec.Struct, array_like=True, frozen=True):
    """A share. `chars`: of its leaf, which may grow later. `secret`: signs cursors, so that none leads to another branch."""

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
        """`ttl_s`: seconds that a share is kept after it was last read."""
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
        fields = "share", "title", "interprets"
        half, title, interprets = await hash_fields(self._client, keys.conversation, *fields)
        if half is None or title is None or not secrets.compare_digest(half, share_id.encode()):
            raise NotFound(_GONE)
        leaf = share.leaf if before is None else share.message_of_cursor(before)
        messages, older = await self._branch(keys, leaf)
        shown = [_shown(message, share) for message in messages]
        cursor = None if older is None else share.cursor(older)
        return SharedPage(title=title.decode(), messages=shown, next=cursor, interprets=languages(interprets))

    async def _branch(self, keys: Keys, leaf: str) -> tuple[list[MessageRecord], str | None]:
        """Return the messages of a page, and the id of the one before them."""
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
    if message.message_id == share.leaf:
        message = msgspec.structs.replace(message, content=message.content[: share.chars])
    return msgspec.convert(message, SharedMessage, from_attributes=True)


def _key(share_id: str) -> str:
    return f"ms:share:{{{share_id}}}"
