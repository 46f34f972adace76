"""Images that people send: kept for their owner at first, for a while, then in conversations that show them.

An image is named by the digest of its bytes, so that sending it again stores nothing new. Each upload is a hash of its own,
`ms:upload:{owner}:digest`, and expires by its own age; `ms:uploaded:{owner}` lists them. A conversation's hash,
`ms:{owner/conversation}:images`, has each image once; it expires and is deleted with the conversation (`accept.lua`,
`finish.lua`, `delete.lua`). All copies are counted (`ledger.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from time import time
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from engine.messages import Message
from engine.vision.image import NOT_SEEN, Image, Seen, in_order, joined
from sessions.errors import NotFound
from sessions.limits.shares import Subject
from sessions.records import Owner
from sessions.store.client import KEEP_IMAGE, pipelined, queue_script, run_script
from sessions.store.codec import Keys
from sessions.store.ledger import Ledger
from sessions.store_errors import store_errors

UNSENT_S = 3600
"""How long an image that no message shows is kept. Uploading it again renews this time once half of it is over."""
IMAGE_COSTS = 1024
"""Bytes that an image counts in addition to its own: the keys and names of a small one may take more than its content."""
ADMITTED_S = 10
"""How long an admission counts: until the ledger has the size that the image's hash notes."""
SHOWN_IMAGES = 32
SHOWN_BYTES = 16 * 1024 * 1024
"""Most bytes of images in a prompt, which has the newest `SHOWN_IMAGES` of its conversation."""
AT_ONCE_BYTES = 4 * 1024 * 1024
"""Bytes of images that are copied from uploads into a conversation at once: one large image, or many small ones."""

_DIGEST_CHARS = 64
"""Length of an image's name. The hash also has fields that are no images, with shorter names."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Image).decode


class _Location(msgspec.Struct, frozen=True):
    """Where images are stored: a conversation's in one hash, each upload in a hash of its own."""

    name: str
    is_upload: bool = False

    @classmethod
    def of(cls, keys: Keys) -> _Location:
        return cls(f"{keys.conversation}:images")

    @classmethod
    def uploads(cls, owner: Owner) -> _Location:
        return cls(f"ms:upload:{{{owner}}}", is_upload=True)

    def key(self, digest: str) -> str:
        """Return the store's key of the hash that has an image."""
        return f"{self.name}:{digest}" if self.is_upload else self.name


class Images:
    """Stores images. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger

    async def keep(self, owner: Owner, *images: Image, group: str = "") -> None:
        """Store images until a message shows them, or they expire. Raises StoreFull."""
        location, given = _Location.uploads(owner), {image.digest: image for image in images}
        if not given:
            return
        pipe = self._client.pipeline(transaction=False)
        for digest in given:
            pipe.pttl(location.key(digest))
        with store_errors():
            left = await pipe.execute()
        new = {  # place and detail depend on the message
            digest: _encode(msgspec.structs.replace(image, at=0, detail=""))
            for (digest, image), left_ms in zip(given.items(), left, strict=True)
            if left_ms < UNSENT_S * 1000 / 2
        }
        if new:
            size = sum(map(_cost, map(len, new.values())))
            await self._ledger.admit(Subject(str(owner), group), size, lifetime_s=ADMITTED_S)
            await self._list(owner, new)

            def queue(pipe: Pipeline) -> None:
                for digest, one in new.items():
                    written = _written({digest: one}, renewed=True, group=group)
                    queue_script(pipe, KEEP_IMAGE, [location.key(digest)], written)

            for noted in await pipelined(self._client, queue):
                self._ledger.recharge(str(owner), noted)

    async def _list(self, owner: Owner, digests: Iterable[str]) -> None:
        """List uploads before they are stored, so that an erasure finds them."""
        name, now = _list_name(owner), time()
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(name, dict.fromkeys(digests, now))
        pipe.zremrangebyscore(name, "-inf", now - 2 * UNSENT_S)  # clocks of replicas differ
        pipe.expire(name, 2 * UNSENT_S)
        with store_errors():
            await pipe.execute()

    async def show(
        self, owner: Owner, keys: Keys, digests: Sequence[str], *, group: str = ""
    ) -> tuple[Image, ...]:
        """Store images in a conversation, and return them without their bytes. Raises NotFound, StoreFull.

        If the message is not accepted after all, they expire as unsent images do.
        """
        uploads, location = _Location.uploads(owner), _Location.of(keys)
        there, sent = await self._sizes([location, uploads], digests)
        sent = {digest: size for digest, size in sent.items() if digest not in there}
        _check_all(digests, there, sent)
        named = await self._named(location, there)
        if sent:
            size = sum(map(_cost, sent.values()))
            await self._ledger.admit(Subject(str(owner), group), size, lifetime_s=ADMITTED_S)
            for some in _few(sent):
                kept = await self._kept(uploads, some)
                noted = await run_script(
                    self._client, KEEP_IMAGE, [location.name], _written(kept, group=group)
                )
                self._ledger.recharge(keys.owner, noted)
                named |= {digest: _decode(one).named() for digest, one in kept.items()}
        _check_all(digests, named)  # some may have expired meanwhile
        return tuple(named[digest] for digest in digests)

    async def _sizes(self, locations: Sequence[_Location], digests: Iterable[str]) -> list[dict[str, int]]:
        """Return the sizes of the images that each of `locations` has, by digest."""
        names = [digest for digest in dict.fromkeys(digests) if len(digest) == _DIGEST_CHARS]
        if not names:
            return [{} for _ in locations]
        pipe = self._client.pipeline(transaction=False)
        for location in locations:
            for digest in names:
                pipe.hstrlen(location.key(digest), digest)
        with store_errors():
            sizes = iter(await pipe.execute())
        found = [dict(zip(names, islice(sizes, len(names)), strict=True)) for _ in locations]
        return [{digest: size for digest, size in one.items() if size} for one in found]

    async def _kept(self, location: _Location, digests: Sequence[str]) -> dict[str, bytes]:
        if not digests:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for digest in digests:
            pipe.hget(location.key(digest), digest)
        with store_errors():
            kept: list[bytes | None] = await pipe.execute()
        return {digest: one for digest, one in zip(digests, kept, strict=True) if one is not None}

    async def _named(self, location: _Location, sizes: Mapping[str, int]) -> dict[str, Image]:
        """Return the images of a location, without their bytes."""
        named: dict[str, Image] = {}
        for some in _few(sizes):
            named |= {
                digest: _decode(one).named() for digest, one in (await self._kept(location, some)).items()
            }
        return named

    async def read(self, keys: Keys, digests: Sequence[str]) -> dict[str, Image]:
        """Return the images that a conversation has, of those named, with their bytes."""
        names = [digest for digest in digests if len(digest) == _DIGEST_CHARS]
        return {digest: _decode(one) for digest, one in (await self._kept(_Location.of(keys), names)).items()}

    async def shown(self, keys: Keys, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return a prompt's messages with the bytes of their newest images; a note replaces older and missing images."""
        given = [Counter[str]() for _ in messages]
        at = [(number, image.digest) for number, one in enumerate(messages) for image in one.images]
        newest = at[: -SHOWN_IMAGES - 1 : -1]
        [sizes] = await self._sizes([_Location.of(keys)], [digest for _, digest in newest])
        size = 0
        for number, digest in newest:  # an image shown twice counts twice, since its bytes are sent again
            given[number][digest] += 1
            size += sizes.get(digest, 0)
            if size >= SHOWN_BYTES:
                break
        known = await self.read(keys, list(dict.fromkeys(chain.from_iterable(given))))
        return tuple(_with_data(*one, known) for one in zip(messages, given, strict=True))

    async def newest(
        self, owner: Owner, conversation_id: str, digests: Iterable[str], *, most: int
    ) -> dict[str, Image]:
        """Return images that a conversation shows, with their bytes: the first of `digests`, until they exceed `most` bytes."""
        keys, size, chosen = Keys.of(owner, conversation_id), 0, list[str]()
        [sizes] = await self._sizes([_Location.of(keys)], digests)
        for digest, its_size in sizes.items():
            if size <= most:
                chosen.append(digest)
                size += its_size
        return await self.read(keys, chosen)

    async def known(self, owner: Owner, conversation_id: str, digests: Iterable[str]) -> dict[str, Image]:
        """Return those of `digests` that a conversation may show (uploaded, or shown there already), without their bytes."""
        uploads, location = _Location.uploads(owner), _Location.of(Keys.of(owner, conversation_id))
        sent, there = await self._sizes([uploads, location], digests)
        there = {digest: size for digest, size in there.items() if digest not in sent}
        return await self._named(uploads, sent) | await self._named(location, there)

    async def all_of(self, keys: Keys) -> list[str]:
        """Return the digests of all images that a conversation shows."""
        with store_errors():
            fields: Any = await cast("Any", self._client.hkeys(_Location.of(keys).name))
        return [field.decode() for field in fields if len(field) == _DIGEST_CHARS]

    async def forget(self, owner: Owner) -> None:
        """Delete an owner's uploads."""
        with store_errors():
            digests: Any = await self._client.zrange(_list_name(owner), 0, -1)
        await self.forget_uploads(owner, [digest.decode() for digest in digests])

    async def forget_uploads(self, owner: Owner, digests: Sequence[str]) -> None:
        """Delete some of an owner's uploads; conversations keep their copies."""
        location, name = _Location.uploads(owner), _list_name(owner)
        if not digests:
            return
        pipe = self._client.pipeline(transaction=False)
        for digest in digests:
            pipe.hget(location.key(digest), "charged")
            pipe.unlink(location.key(digest))
        pipe.zrem(name, *digests)
        with store_errors():
            answers = await pipe.execute()
        await self._ledger.deleted(str(owner), [note for note in answers[:-1:2] if note])


def _list_name(owner: Owner) -> str:
    return f"ms:uploaded:{{{owner}}}"


def _written(kept: Mapping[str, bytes], *, renewed: bool = False, group: str = "") -> list[str | bytes | int]:
    """Return the arguments of `keep_image.lua`, which writes images and their hash's expiry at once: nothing stays for good.

    `renewed`: the hash expires `UNSENT_S` from now; otherwise an expiry that it has stays, such as a conversation's.
    """
    written: list[str | bytes | int] = [UNSENT_S, int(renewed), group]
    for digest, one in kept.items():
        written += (digest, one, _cost(len(one)))
    return written


def _cost(size: int) -> int:
    return size + IMAGE_COSTS


def _few(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield digests in groups that fit `AT_ONCE_BYTES`."""
    some, size = list[str](), 0
    for digest, its_size in sizes.items():
        if some and size + its_size > AT_ONCE_BYTES:
            yield some
            some, size = [], 0
        some.append(digest)
        size += its_size
    if some:
        yield some


def _check_all(digests: Iterable[str], *found: Mapping[str, object]) -> None:
    """Raise NotFound for an image that is not there."""
    for digest in digests:
        if not any(digest in one for one in found):
            raise NotFound(f'There is no attachment "{digest}": it was never sent, or has expired.')


def _with_data(message: Message, given: Counter[str], known: Mapping[str, Image]) -> Message:
    """Return a message with the bytes of its images; notes replace those not in `given`: by digest, how often each is shown."""
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
