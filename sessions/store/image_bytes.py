"""How many bytes of images are kept for each owner, and behind each key or address.

Each copy counts, as each takes the store's memory: in the uploads, and in every conversation that shows the image. An owner's
ledger, `ms:images-kept:{owner}`, is a hash: how much lies at each place, `sum`, and the `group` that it counts for. That of a
group, `ms:images-kept-by:{group}`, has owners in the place of places.

Copies also end by their time, without a word. So each count looks at some places, chosen at random, and corrects the ledger; one
that would be refused looks at more of them. An owner of a few conversations is thus always counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import Refused
from sessions.records import Owner
from sessions.store.history.keys import Keys
from sessions.store.redis.client import COUNT_IMAGES, piped, queue_script, run_script, store_errors

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


class _Change(NamedTuple):
    """One number of a ledger, as `count_images.lua` takes it."""

    field: str
    how: Literal["add", "least", "set"]
    size: int


class ImageBytes:
    """Keeps the ledgers. Every method raises StoreDown. No number of round trips grows with places, owners or images."""

    def __init__(self, client: Redis, *, ttl_s: float) -> None:
        """`ttl_s`: seconds for which a conversation is kept."""
        self._client = client
        self._kept_s = int(ttl_s) + _LONGER_S

    async def add(self, place: Place, size: int, *, group: str = "") -> None:
        """Count images that will be stored at a place. Raises TooManyImages. A repetition counts again, until somebody looks."""
        ledger, added = _ledger(place.owner), _Change(place.field, "add", size)
        for looks in (LOOKED_AT, LOOKED_AT_MOST):
            wrong = (await self._wrong([place.owner], looks)).get(place.owner, [])
            counted = await self._count(ledger, *wrong, added, most=OWNER_BYTES, group=group)
            if counted is not None:
                break
        else:
            raise TooManyImages(OWNER_BYTES)
        if counted.group and not await self._fits(counted, place.owner):
            await self._count(ledger, added._replace(size=-size))
            raise TooManyImages(GROUP_BYTES)

    async def stored(self, place: Place, size: int) -> None:
        """Note how much lies at a place that something was stored at: somebody may have looked before that."""
        await self._count(_ledger(place.owner), _Change(place.field, "least", size))

    async def gone(self, place: Place) -> None:
        """Count a place no more, whose images are gone."""
        counted = await self._count(_ledger(place.owner), _Change(place.field, "set", 0))
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
            wrong = await self._wrong_owners(counted.group, looks, but=owner)
            if await self._count_owner(counted, owner, *wrong, most=GROUP_BYTES) is not None:
                return True
        return False

    async def _wrong(self, owners: Sequence[str], places: int) -> dict[str, list[_Change]]:
        """Return what is wrong in owners' ledgers, after a look at some places of each."""
        ledgers = await self._some(map(_ledger, owners), places)
        looked = [
            (place, number)
            for owner, numbers in zip(owners, ledgers, strict=True)
            for field, number in numbers
            if (place := Place.read(owner, field)) is not None
        ]
        pipe = self._client.pipeline(transaction=False)
        for place, _ in looked:
            pipe.hget(place.name, BYTES)
        wrong: dict[str, list[_Change]] = {}
        for (place, number), lies in zip(looked, await _answers(pipe), strict=True):
            if int(lies or 0) != number:
                wrong.setdefault(place.owner, []).append(_Change(place.field, "set", int(lies or 0)))
        return wrong

    async def _wrong_owners(self, group: str, owners: int, *, but: str) -> list[_Change]:
        """Correct the ledgers of some owners of a group; return what is wrong in that of the group.

        `but`: whose images are being counted, and do not lie in their place so far.
        """
        [numbers] = await self._some([_ledger_of_group(group)], owners)
        counted = {field[1:]: number for field, number in numbers if field != f"/{but}"}
        wrong = await self._wrong(list(counted), LOOKED_AT)

        def correct(pipe: Pipeline) -> None:
            for owner, changes in wrong.items():
                queue_script(pipe, COUNT_IMAGES, [_ledger(owner)], self._numbers(changes))

        await piped(self._client, correct)
        pipe = self._client.pipeline(transaction=False)
        for owner in counted:
            pipe.hmget(_ledger(owner), [_SUM, _GROUP])
        kept = [  # owners who count in another group by now have nothing in this one
            int(size or 0) if where == group.encode() else 0 for size, where in await _answers(pipe)
        ]
        pairs = zip(counted.items(), kept, strict=True)
        return [_Change(f"/{owner}", "set", has) for (owner, number), has in pairs if has != number]

    async def _some(self, ledgers: Iterable[str], count: int) -> list[list[tuple[str, int]]]:
        """Return some fields of each ledger with their numbers, chosen at random."""
        pipe = self._client.pipeline(transaction=False)
        for ledger in ledgers:
            pipe.hrandfield(ledger, count + 2, withvalues=True)
        return [_numbers_in(answer)[:count] for answer in await _answers(pipe)]

    async def _count_owner(
        self, counted: _Counted, owner: str, *wrong: _Change, most: int | None = None
    ) -> _Counted | None:
        own = _Change(f"/{owner}", "set", counted.sum)
        return await self._count(_ledger_of_group(counted.group), *wrong, own, most=most)

    async def _count(
        self, ledger: str, *changes: _Change, most: int | None = None, group: str = ""
    ) -> _Counted | None:
        """Write numbers into a ledger; None where the last one would be too much, and was left out."""
        args = self._numbers(changes, most, group)
        answer = await run_script(self._client, COUNT_IMAGES, [ledger], args)
        return None if answer is None else _Counted(answer[0], answer[1].decode())

    def _numbers(
        self, changes: Iterable[_Change], most: int | None = None, group: str = ""
    ) -> list[str | bytes | int]:
        numbers: list[str | bytes | int] = ["" if most is None else most, self._kept_s, group]
        for change in changes:
            numbers += (change.field, change.how, change.size)
        return numbers


def _numbers_in(answer: Sequence[Any]) -> list[tuple[str, int]]:
    """Return the numbers among some fields of a ledger, with their fields."""
    pairs = answer if answer and isinstance(answer[0], list) else zip(*[iter(answer)] * 2, strict=True)
    found = [(field.decode(), number) for field, number in pairs]
    return [(field, int(number)) for field, number in found if field not in {_SUM, _GROUP}]


async def _answers(pipe: Pipeline) -> list[Any]:
    with store_errors():
        return await pipe.execute()


def _ledger(owner: str) -> str:
    return f"ms:images-kept:{{{owner}}}"


def _ledger_of_group(group: str) -> str:
    return f"ms:images-kept-by:{{{group}}}"
