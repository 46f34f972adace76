"""Images that people send: first kept for their owner, for a while, then in the conversation that shows them.

An image is named by the digest of its bytes, so sending it again stores nothing new. An owner's hash, `ms:uploads:{owner}`, has
the images that no message shows yet. A conversation's hash, `ms:{owner/conversation}:images`, has each image once; it expires
and is deleted with the conversation (`accept.lua`, `finish.lua`, `delete.lua`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from engine.images.image import NOT_SEEN, Image, Seen, in_order, joined
from engine.messages import Message
from sessions.errors import NotFound, Refused
from sessions.records import Owner
from sessions.store.history.keys import Keys
from sessions.store.redis.client import KEEP_IMAGE, run_script, store_errors

UNSENT_S = 3600
"""How long an image is kept at least that no message shows, after its owner's last upload."""
OWNER_BYTES = 256 * 1024 * 1024
"""Bytes that an owner may send within the lifetime of a conversation; beyond it images are refused."""
GROUP_BYTES = 4 * OWNER_BYTES
"""The same for all owners behind one key or address: without authentication anybody can be many owners."""
SHOWN_IMAGES = 32
SHOWN_BYTES = 16 * 1024 * 1024
"""Each prompt shows the newest images of a conversation: so many, up to so many bytes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Image).decode


class TooManyImages(Refused):
    """The limit of images is reached."""

    code = "too_many_images"


class Images:
    """Stores images. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        self._client = client
        self._ttl_s = int(ttl_s)

    async def keep(self, owner: Owner, image: Image, *, group: str = "") -> None:
        """Store an image until a message shows it, or it expires. Raises TooManyImages.

        It is counted before it is stored. A repeated write counts twice, so the limit always holds.
        """
        name = _uploads(owner)
        with store_errors():
            if await cast("Any", self._client.hexists(name, image.digest)):
                await self._client.expire(name, UNSENT_S)
                return
            size, counted = len(image.data), _bytes_of(str(owner))
            await self._count(counted, size, OWNER_BYTES)
            if group:
                try:
                    await self._count(_bytes_of(group), size, GROUP_BYTES)
                except TooManyImages:
                    await self._client.incrby(counted, -size)
                    raise
            plain = msgspec.structs.replace(
                image, at=0, detail=""
            )  # where it stands is a matter of each message
            await self._put(name, image.digest, _encode(plain), renews=True)

    async def _count(self, name: str, size: int, most: int) -> None:
        sent = await self._client.incrby(name, size)
        if sent == size or await self._client.pttl(name) < 0:
            await self._client.expire(name, self._ttl_s)
        if sent > most:
            await self._client.incrby(name, -size)
            raise TooManyImages(
                f"Too many images were sent: {most // 1024**2} MiB are kept. Send smaller ones, or come back later."
            )

    async def show(self, owner: Owner, keys: Keys, digests: Sequence[str]) -> tuple[Image, ...]:
        """Store images in a conversation, and return them without their bytes. Raises NotFound.

        If the message is not accepted after all, they expire as images do that no message shows.
        """
        shown = [await self._show(owner, _in(keys), digest) for digest in digests]
        return tuple(shown)

    async def _show(self, owner: Owner, place: str, digest: str) -> Image:
        with store_errors():
            kept = await cast("Awaitable[bytes | None]", self._client.hget(_uploads(owner), digest))
            if kept is None:
                kept = await cast("Awaitable[bytes | None]", self._client.hget(place, digest))
                if kept is None:
                    raise NotFound(f'There is no attachment "{digest}": it was never sent, or has expired.')
                return _decode(kept).named()
        await self._put(place, digest, kept, renews=False)
        return _decode(kept).named()

    async def _put(self, name: str, digest: str, kept: bytes, *, renews: bool) -> None:
        """Write an image and the end of its hash at once: nothing stays for good. `renews`: that ends later than before."""
        await run_script(self._client, KEEP_IMAGE, [name], [digest, kept, UNSENT_S, "1" if renews else "0"])

    async def read(self, keys: Keys, digests: Sequence[str]) -> dict[str, Image]:
        """Return those of a conversation's images that are there, with their bytes."""
        return await self._of(_in(keys), digests)

    async def _of(self, name: str, digests: Sequence[str]) -> dict[str, Image]:
        if not digests:
            return {}
        with store_errors():
            kept: Any = await cast("Awaitable[list[bytes | None]]", self._client.hmget(name, [*digests]))
        return {digest: _decode(one) for digest, one in zip(digests, kept, strict=True) if one is not None}

    async def shown(self, keys: Keys, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return a prompt's messages with the bytes of their newest images; a note replaces each other one, and each missing one."""
        known, size = dict[str, Image](), 0
        given = [Counter[str]() for _ in messages]
        at = [(number, image.digest) for number, one in enumerate(messages) for image in one.images]
        for number, digest in at[
            : -SHOWN_IMAGES - 1 : -1
        ]:  # each place counts, since the same bytes are sent again
            if digest not in known:
                known |= await self.read(keys, [digest])
            given[number][digest] += 1
            size += len(known[digest].data) if digest in known else 0
            if size >= SHOWN_BYTES:
                break
        return tuple(_with_data(*one, known) for one in zip(messages, given, strict=True))

    async def of(self, owner: Owner, conversation_id: str, digests: Sequence[str]) -> dict[str, Image]:
        """Return those of some images that a conversation shows, with their bytes."""
        return await self.read(Keys.of(owner, conversation_id), digests)

    async def known(self, owner: Owner, conversation_id: str, digest: str) -> Image | None:
        """Return an image that a conversation may show, since it was uploaded or is shown there already, without its bytes; or None."""
        for place in (_uploads(owner), _in(Keys.of(owner, conversation_id))):
            if found := await self._of(place, [digest]):
                return found[digest].named()
        return None

    async def find(self, owner: Owner, conversation_id: str, digest: str) -> Image | None:
        """Return an image that a conversation shows, or None."""
        return (await self.read(Keys.of(owner, conversation_id), [digest])).get(digest)

    async def forget(self, owner: Owner, *, counted: bool = False) -> None:
        """Delete an owner's images that no message shows. `counted`: also the count of what it sent, none of which is left."""
        with store_errors():
            await self._client.unlink(_uploads(owner))
            if counted:
                await self._client.unlink(_bytes_of(str(owner)))


def _with_data(message: Message, given: Counter[str], known: Mapping[str, Image]) -> Message:
    """Return a message with the bytes of so many of its images, by digest."""
    if not message.images:
        return message
    parts: list[Seen] = []
    for part in in_order(message.content, message.images):
        if isinstance(part, str):
            parts.append((part, ()))
        elif given[part.digest] and (found := known.get(part.digest)) is not None:
            given[part.digest] -= 1
            parts.append(("", (msgspec.structs.replace(part, data=found.data),)))
        else:
            parts.append((NOT_SEEN, ()))
    content, images = joined(parts)
    return msgspec.structs.replace(message, content=content, images=images)


def _in(keys: Keys) -> str:
    return f"{keys.conversation}:images"


def _uploads(owner: Owner) -> str:
    return f"ms:uploads:{{{owner}}}"


def _bytes_of(who: str) -> str:
    """The count of what an owner, a key or an address sent."""
    return f"ms:image-bytes:{{{who}}}"
