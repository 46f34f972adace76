"""Images that people send: first kept for their owner, for a while, then in the conversation that shows them.

An image is named by the digest of its bytes, so sending it again stores nothing new. An owner's hash, `ms:uploads:{owner}`, has
what was uploaded in the last hour. A conversation's hash, `ms:{owner/conversation}:images`, has each image once; it expires
and is deleted with the conversation (`accept.lua`, `finish.lua`, `delete.lua`). All copies are counted (`image_bytes.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from engine.images.image import NOT_SEEN, Image, Seen, in_order, joined
from engine.messages import Message
from sessions.errors import NotFound
from sessions.records import Owner
from sessions.store.history.keys import Keys
from sessions.store.image_bytes import IMAGE_COSTS, ImageBytes, Place
from sessions.store.redis.client import KEEP_IMAGE, run_script, store_errors

UNSENT_S = 3600
"""How long an image is kept at least that no message shows, after its owner's last upload."""
SHOWN_IMAGES = 32
SHOWN_BYTES = 16 * 1024 * 1024
"""Each prompt shows the newest images of a conversation: so many, up to so many bytes."""

_DIGEST_CHARS = 64
"""Other names are of no image; the hash has fields that are none."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Image).decode


class Images:
    """Stores images. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        self._client = client
        self._bytes = ImageBytes(client, ttl_s=ttl_s)

    async def keep(self, owner: Owner, image: Image, *, group: str = "") -> None:
        """Store an image until a message shows it, or it expires. Raises TooManyImages."""
        place = Place.uploads(owner)
        with store_errors():
            if await cast("Any", self._client.hexists(place.name, image.digest)):
                await self._client.expire(place.name, UNSENT_S)
                return
        plain = msgspec.structs.replace(image, at=0, detail="")  # each message has places of its own
        await self._put(place, image.digest, _encode(plain), group=group)

    async def show(
        self, owner: Owner, keys: Keys, digests: Sequence[str], *, group: str = ""
    ) -> tuple[Image, ...]:
        """Store images in a conversation, and return them without their bytes. Raises NotFound, TooManyImages.

        If the message is not accepted after all, they expire as images do that no message shows.
        """
        shown = [await self._show(owner, keys, digest, group) for digest in digests]
        return tuple(shown)

    async def _show(self, owner: Owner, keys: Keys, digest: str, group: str) -> Image:
        uploads, place = Place.uploads(owner), Place.of(keys)
        if (there := await self._kept(place, digest)) is not None:
            return _decode(there).named()
        if (kept := await self._kept(uploads, digest)) is None:
            raise NotFound(f'There is no attachment "{digest}": it was never sent, or has expired.')
        await self._put(place, digest, kept, group=group)
        return _decode(kept).named()

    async def _kept(self, place: Place, digest: str) -> bytes | None:
        with store_errors():
            return await cast("Awaitable[bytes | None]", self._client.hget(place.name, digest))

    async def _put(self, place: Place, digest: str, kept: bytes, *, group: str) -> None:
        """Count an image, then write it and the end of its hash at once: nothing stays for good. Raises TooManyImages.

        An upload makes all uploads last; an image in a conversation lasts as long as that does.
        """
        size, renews = len(kept) + IMAGE_COSTS, "0" if place.conversation_id else "1"
        await self._bytes.add(place, size, group=group)
        written: list[str | bytes | int] = [digest, kept, UNSENT_S, renews, size]
        lies = await run_script(self._client, KEEP_IMAGE, [place.name], written)
        await self._bytes.stored(place, lies)

    async def read(self, keys: Keys, digests: Sequence[str]) -> dict[str, Image]:
        """Return those of a conversation's images that are there, with their bytes."""
        return await self._of(Place.of(keys), digests)

    async def _of(self, place: Place, digests: Sequence[str]) -> dict[str, Image]:
        digests = [digest for digest in digests if len(digest) == _DIGEST_CHARS]
        if not digests:
            return {}
        with store_errors():
            kept: Any = await cast("Awaitable[list[bytes | None]]", self._client.hmget(place.name, digests))
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
        if known:
            await self._bytes.renew(keys.owner)
        return tuple(_with_data(*one, known) for one in zip(messages, given, strict=True))

    async def of(self, owner: Owner, conversation_id: str, digests: Sequence[str]) -> dict[str, Image]:
        """Return those of some images that a conversation shows, with their bytes."""
        return await self.read(Keys.of(owner, conversation_id), digests)

    async def known(self, owner: Owner, conversation_id: str, digest: str) -> Image | None:
        """Return an image that a conversation may show, since it was uploaded or is shown there already, without its bytes; or None."""
        for place in (Place.uploads(owner), Place.of(Keys.of(owner, conversation_id))):
            if found := await self._of(place, [digest]):
                return found[digest].named()
        return None

    async def find(self, owner: Owner, conversation_id: str, digest: str) -> Image | None:
        """Return an image that a conversation shows, or None."""
        return (await self.read(Keys.of(owner, conversation_id), [digest])).get(digest)

    async def release(self, keys: Keys) -> None:
        """Count the images of a conversation no more: it is gone."""
        await self._bytes.gone(Place.of(keys))

    async def forget(self, owner: Owner, *, counted: bool = False) -> None:
        """Delete an owner's uploads. `counted`: also all counts, as nothing else is left."""
        uploads = Place.uploads(owner)
        with store_errors():
            await self._client.unlink(uploads.name)
        if counted:
            await self._bytes.forget(owner)
        else:
            await self._bytes.gone(uploads)


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
