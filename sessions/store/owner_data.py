"""All stored data of an owner: export, restore and erasure."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from engine.vision.image import Image
from sessions.events import ShownCall
from sessions.limits.slots import as_service
from sessions.records import MessageRecord, Owner
from sessions.store.history.codec import Keys
from sessions.store.history.history import History, message_at
from sessions.store.history.index import list_name
from sessions.store.images import Images
from sessions.store.redis.client import RENEW, run_script
from sessions.store.redis.server_config import scan_keys
from sessions.store_errors import store_errors

AT_ONCE = 16
"""Messages that are read at once; each may be as long as the model's window."""
SCANNED_AT_ONCE = 32
"""Conversations in work at the same time: as many as the client has connections."""
_MESSAGE = "message:"
_NAMED = re.compile(r"ms:(conversations:)?\{(.*)\}(?::images)?", re.DOTALL)
"""A conversation's hash, its images, which may be there without it, or an owner's list."""


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
        """Make one from its record. `images`: those that are there, by their digests."""
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
    """A conversation. `holder`: the person, or the client of theirs under whose name it is stored."""

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

        `unlisted` scans all keys of the store. Only one scan runs at a time, since it costs the store much.
        """
        seen = set()
        for conversation_id in await self._listed(owner):
            seen.add(one := OwnedConversation(owner, conversation_id))
            yield one
        if unlisted:
            async with self._scan_lock:
                with as_service():  # others may wait for it
                    others = {one: None async for one in self._unlisted(owner) if one not in seen}
            for one in others:
                yield one

    async def _listed(self, owner: Owner) -> list[str]:
        with store_errors():
            names = await cast("Awaitable[list[bytes]]", self._client.zrevrange(list_name(owner), 0, -1))
        return [name.decode() for name in names]

    async def _unlisted(self, owner: Owner) -> AsyncIterator[OwnedConversation]:
        """Yield an owner's keys by name; some of them more than once."""
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
        rows = list(zip(ids, *[iter(await self._fields(keys, fields))] * 3, strict=True))
        calls = [call.decode() for *_, made in rows for call in (made or b"").split()]
        kept = await self._fields(keys, [f"call:{call}" for call in calls]) if calls else []
        records = dict(zip(calls, kept, strict=True))
        return [
            message_at(message_id, message, parent or b"", _calls_of(made or b"", records))
            for message_id, message, parent, made in rows
            if message is not None
        ]

    async def _fields(self, keys: Keys, names: list[str]) -> list[bytes | None]:
        with store_errors():
            return await cast("Awaitable[list[bytes | None]]", self._client.hmget(keys.conversation, names))


def _calls_of(made: bytes, records: Mapping[str, bytes | None]) -> list[bytes]:
    """Return a reply's calls from a script's answer: each id, then its record."""
    return [part for call in made.split() for part in (call, records[call.decode()] or b"")]


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + AT_ONCE] for first in range(0, len(ids), AT_ONCE))


def _literal(name: str) -> str:
    """Escape a name for a pattern of Redis."""
    return re.sub(r"([\\*?\[\]^-])", r"\\\1", name)


async def begin_epochs(client: Redis) -> int:
    """Begin a new epoch in every conversation; return their number. Raises StoreDown.

    A restored store gives seqs again, to other events. With a new epoch, a client that saw the old ones is sent a gap with a
    snapshot. Doing this twice does no harm.
    """
    total = 0
    async for names in _scanned(client):
        total += sum(await asyncio.gather(*(_begin(client, name) for name in names)))
    return total


async def _begin(client: Redis, name: str) -> bool:
    with store_errors():
        epoch = await cast("Awaitable[bytes | None]", client.hget(name, "epoch"))
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
