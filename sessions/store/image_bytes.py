"""How many bytes of images are kept for each owner, and behind each key or address.

Each copy counts, as each takes the store's memory: in the uploads, and in every conversation that shows the image. An owner's
ledger, `ms:images-kept:{owner}`, is a hash: how much lies at each place, `sum`, and the `group` that it counts for. That of a
group, `ms:images-kept-by:{group}`, has owners in the place of places.

Copies also end by their time, without a word. So each count looks at some places, chosen at random, and corrects the ledger; one
that would be refused looks at more of them. An owner of a few conversations is thus always counted exactly.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from redis.asyncio import Redis

from sessions.errors import Refused
from sessions.records import Owner
from sessions.store.history.keys import Keys
from sessions.store.redis.client import COUNT_IMAGES, run_script, store_errors

OWNER_BYTES = 256 * 1024 * 1024
"""Bytes of images that are kept for an owner; beyond it images are refused."""
GROUP_BYTES = 4 * OWNER_BYTES
"""The same for all owners behind one key or address: without authentication anybody can be many owners."""
IMAGE_COSTS = 1024
"""Bytes that an image counts beside its own: small ones would take more for their names than for themselves."""
LOOKED_AT, LOOKED_AT_MOST = 4, 32
"""Places that a count looks at; those that one looks at before it is refused."""
BYTES = "bytes"
"""The field of a hash of images that says how much all of them take."""

_LONGER_S = 2 * 24 * 3600
"""A ledger is kept so much longer than a conversation."""
_UPLOADS = "uploads"
_SUM, _GROUP = "sum", "group"


class TooManyImages(Refused):
    """As many bytes of images are kept as may be."""

    code = "too_many_images"

    def __init__(self, most: int) -> None:
        super().__init__(
            f"Too many images are kept: {most // 1024**2} MiB may be, and each conversation that shows an image has a copy. "
            "Send smaller ones, or delete conversations with images."
        )


class Place(NamedTuple):
    """Where images of an owner lie: in a conversation, or among its uploads (then `conversation_id` is empty)."""

    owner: str
    conversation_id: str = ""

    @classmethod
    def of(cls, keys: Keys) -> Place:
        """Return a conversation's."""
        return cls(keys.owner, keys.conversation_id)

    @classmethod
    def uploads(cls, owner: Owner) -> Place:
        """Return an owner's uploads."""
        return cls(str(owner))

    @classmethod
    def read(cls, owner: str, field: str) -> Place | None:
        """Return the place of a ledger's field; None where it is none."""
        if field == _UPLOADS:
            return cls(owner)
        return cls(owner, field[1:]) if field.startswith("/") else None

    @property
    def field(self) -> str:
        """Its name in the ledger."""
        return f"/{self.conversation_id}" if self.conversation_id else _UPLOADS

    @property
    def name(self) -> str:
        """The store's key for its hash of images."""
        if not self.conversation_id:
            return f"ms:uploads:{{{self.owner}}}"
        return f"ms:{{{self.owner}/{self.conversation_id}}}:images"


class _Counted(NamedTuple):
    """What a ledger has after a count."""

    sum: int
    group: str


class ImageBytes:
    """Keeps the ledgers. Every method raises StoreDown."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        """`ttl_s`: seconds for which a conversation is kept."""
        self._client = client
        self._kept_s = int(ttl_s) + _LONGER_S

    async def add(self, place: Place, size: int, *, group: str = "") -> None:
        """Count an image that will be stored at a place. Raises TooManyImages. A repetition counts again, until somebody looks."""
        for looks in (LOOKED_AT, LOOKED_AT_MOST):
            await self._look(place.owner, looks)
            counted = await self._count(place, "add", size, most=OWNER_BYTES, group=group)
            if counted is not None:
                break
        else:
            raise TooManyImages(OWNER_BYTES)
        if counted.group and not await self._fits(counted, place.owner):
            await self._count(place, "add", -size)
            raise TooManyImages(GROUP_BYTES)

    async def stored(self, place: Place, size: int) -> None:
        """Note how much lies at a place that something was stored at: somebody may have looked before that."""
        await self._count(place, "least", size)

    async def gone(self, place: Place) -> None:
        """Count a place no more, whose images are gone."""
        counted = await self._count(place, "set", 0)
        if counted is not None and counted.group:
            await self._count_owner(counted, place.owner)

    async def forget(self, owner: Owner) -> None:
        """Count nothing of an owner any more: all is gone."""
        name = _ledger(str(owner))
        with store_errors():
            group: Any = await cast("Any", self._client.hget(name, _GROUP))
            await self._client.unlink(name)
        if group:
            await self._count_owner(_Counted(0, group.decode()), str(owner))

    async def renew(self, owner: str) -> None:
        """Keep an owner's ledger as long as what it shows now."""
        with store_errors():
            await self._client.expire(_ledger(owner), self._kept_s)

    async def _fits(self, counted: _Counted, owner: str) -> bool:
        """Count an owner among those of its group; False if that is too much."""
        for looks in (LOOKED_AT, LOOKED_AT_MOST):
            await self._look_at_owners(counted.group, looks)
            if await self._count_owner(counted, owner, most=GROUP_BYTES) is not None:
                return True
        return False

    async def _look(self, owner: str, places: int) -> None:
        """Compare some places of an owner with what lies there."""
        for field, counted in await self._some(_ledger(owner), places):
            place = Place.read(owner, field)
            if place is not None and (lies := await self._number(place.name, BYTES)) != counted:
                await self._count(place, "set", lies)

    async def _look_at_owners(self, group: str, owners: int) -> None:
        """Compare some owners of a group with their own ledgers."""
        for field, counted in await self._some(_ledger_of_group(group), owners):
            if not field.startswith("/"):
                continue
            owner = field[1:]
            await self._look(owner, LOOKED_AT)
            if (has := await self._of_group(owner, group)) != counted:
                await self._count_owner(_Counted(has, group), owner)

    async def _of_group(self, owner: str, group: str) -> int:
        """Return the bytes of an owner; 0 if they count in another group by now."""
        with store_errors():
            has: Any = await cast("Any", self._client.hmget(_ledger(owner), [_SUM, _GROUP]))
        return int(has[0] or 0) if has[1] == group.encode() else 0

    async def _some(self, ledger: str, count: int) -> list[tuple[str, int]]:
        """Return some fields of a ledger with their numbers, chosen at random."""
        with store_errors():
            fields: Any = await cast("Any", self._client.hrandfield(ledger, count + 2))
            found = [field for field in fields or [] if field.decode() not in {_SUM, _GROUP}]
            found = found[:count]
            if not found:
                return []
            numbers: Any = await cast("Any", self._client.hmget(ledger, found))
        return [(field.decode(), int(number or 0)) for field, number in zip(found, numbers, strict=True)]

    async def _number(self, name: str, field: str) -> int:
        with store_errors():
            return int(await cast("Any", self._client.hget(name, field)) or 0)

    async def _count(
        self, place: Place, how: str, size: int, *, most: int | None = None, group: str = ""
    ) -> _Counted | None:
        return await self._written(_ledger(place.owner), [place.field, how, size], most, group)

    async def _count_owner(
        self, counted: _Counted, owner: str, *, most: int | None = None
    ) -> _Counted | None:
        ledger = _ledger_of_group(counted.group)
        return await self._written(ledger, [f"/{owner}", "set", counted.sum], most)

    async def _written(
        self, ledger: str, number: list[str | bytes | int], most: int | None, group: str = ""
    ) -> _Counted | None:
        """Write one number into a ledger; None where that would be too much."""
        bound = "" if most is None else most
        args = [*number, bound, self._kept_s, group]
        answer = await run_script(self._client, COUNT_IMAGES, [ledger], args)
        return None if answer is None else _Counted(answer[0], answer[1].decode())


def _ledger(owner: str) -> str:
    return f"ms:images-kept:{{{owner}}}"


def _ledger_of_group(group: str) -> str:
    return f"ms:images-kept-by:{{{group}}}"
