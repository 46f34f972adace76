"""What an owner keeps of images is what lies in the store: each copy, and none that is gone."""

from __future__ import annotations

import msgspec
import pytest
from redis.asyncio import Redis

from engine.messages import Message
from sessions.errors import NotFound
from sessions.records import Owner
from sessions.store import image_bytes
from sessions.store import images as images_module
from sessions.store.history.history import History
from sessions.store.history.keys import Keys
from sessions.store.image_bytes import IMAGE_COSTS, ImageBytes, Place, TooManyImages
from sessions.store.images import Images
from sessions.store.redis.client import load_scripts
from tests.pictures import JPEG, PNG, Picture, png
from tests.sessions.round_trips import RoundTrips

ALICE, BOB, CAROL = (Owner("anonymous", name) for name in ("alice", "bob", "carol"))
GROUP = "192.0.2.7"


def cost(picture: Picture) -> int:
    return len(msgspec.msgpack.encode(picture.image)) + IMAGE_COSTS


COST = cost(PNG)


@pytest.fixture
def images(store: Redis) -> Images:
    return Images(store, ttl_s=3600)


async def show(images: Images, owner: Owner, *rooms: str, picture: Picture = PNG) -> None:
    for room in rooms:
        await images.show(owner, Keys.of(owner, room), [picture.image.digest])


async def counted(store: Redis, name: str) -> int:
    return int(await store.hget(name, "sum") or 0)  # type: ignore[misc]


async def of(store: Redis, owner: Owner) -> int:
    return await counted(store, f"ms:images-kept:{{{owner}}}")


async def test_each_copy_counts_once(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image)
    await images.keep(ALICE, PNG.image)
    assert await of(store, ALICE) == COST
    await show(images, ALICE, "a", "b", "b")
    assert await of(store, ALICE) == 3 * COST
    await images.keep(ALICE, JPEG.image)
    await show(images, ALICE, "a", picture=JPEG)
    assert await of(store, ALICE) == 3 * COST + 2 * cost(JPEG)


async def test_beyond_the_bound_an_image_is_shown_in_no_further_conversation(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_bytes, "OWNER_BYTES", 3 * COST)
    for owner in (ALICE, BOB):
        await images.keep(owner, PNG.image)
        await show(images, owner, "a", "b")
        with pytest.raises(TooManyImages):
            await show(images, owner, "c")
        await show(images, owner, "a", "b")
        assert await of(store, owner) == 3 * COST
        assert not await store.exists(f"ms:{{{owner}/c}}:images")


async def test_what_was_deleted_counts_no_more(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image)
    await show(images, ALICE, "a", "b")
    keys = Keys.of(ALICE, "a")
    await History(store, ttl_s=60, replica="here").delete(keys)
    await images.release(keys)
    assert await of(store, ALICE) == 2 * COST
    await images.release(keys)
    assert await of(store, ALICE) == 2 * COST
    await images.forget(ALICE)
    assert await of(store, ALICE) == COST


async def test_what_expired_is_noticed_before_anything_is_refused(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = [f"room {number}" for number in range(20)]
    await images.keep(ALICE, PNG.image)
    await show(images, ALICE, *rooms)
    monkeypatch.setattr(image_bytes, "OWNER_BYTES", 21 * COST)
    with pytest.raises(TooManyImages):
        await show(images, ALICE, "another")
    await store.unlink(*(Place.of(Keys.of(ALICE, room)).name for room in rooms[1:]))
    monkeypatch.setattr(image_bytes, "OWNER_BYTES", 3 * COST)
    await show(images, ALICE, "another")
    assert await of(store, ALICE) == 3 * COST
    with pytest.raises(TooManyImages):
        await show(images, ALICE, "one more")


async def test_each_count_looks_at_a_few_places(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the ledger of one who is far from any bound comes near the truth, too."""
    monkeypatch.setattr(image_bytes, "LOOKED_AT_MOST", 0)
    await images.keep(ALICE, PNG.image)
    await show(images, ALICE, "a", "b")
    await store.unlink(Place.of(Keys.of(ALICE, "a")).name)
    await show(images, ALICE, "c")
    assert await of(store, ALICE) == 3 * COST


async def test_what_was_counted_and_never_stored_is_noticed(images: Images, store: Redis) -> None:
    """The process died between the two."""
    ledger = ImageBytes(store, ttl_s=3600)
    for _ in range(3):
        await ledger.add(Place.of(Keys.of(ALICE, "a")), COST)
    await images.keep(ALICE, PNG.image)
    assert await of(store, ALICE) == COST


async def test_what_was_looked_at_before_it_was_stored_counts_all_the_same(store: Redis) -> None:
    ledger, place = ImageBytes(store, ttl_s=3600), Place.uploads(ALICE)
    await ledger.add(place, COST)
    await ledger.add(Place.of(Keys.of(ALICE, "a")), COST)  # looks at the uploads, where nothing lies yet
    await ledger.stored(place, COST)
    assert await of(store, ALICE) == 2 * COST


async def test_all_owners_behind_one_address_are_counted_together(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by what is shown later, when nobody says which address that was."""
    monkeypatch.setattr(image_bytes, "GROUP_BYTES", 3 * COST)
    of_group = f"ms:images-kept-by:{{{GROUP}}}"
    for owner in (ALICE, BOB):
        await images.keep(owner, PNG.image, group=GROUP)
    await show(images, ALICE, "a")
    with pytest.raises(TooManyImages):
        await show(images, BOB, "b")
    assert [await of(store, owner) for owner in (ALICE, BOB)] == [2 * COST, COST]
    await store.unlink(Place.of(Keys.of(ALICE, "a")).name)  # it expires
    await show(images, BOB, "b")
    assert await counted(store, of_group) == 3 * COST
    await images.forget(ALICE, counted=True)
    assert await counted(store, of_group) == 2 * COST
    await show(images, BOB, "c")


async def test_an_owner_counts_where_he_is_now(images: Images, store: Redis) -> None:
    """What he sends from elsewhere is nothing to those who were beside him before."""
    await images.keep(ALICE, PNG.image, group=GROUP)
    await images.keep(ALICE, JPEG.image, group="elsewhere")
    await images.keep(BOB, PNG.image, group=GROUP)  # looks at who is counted there
    assert await counted(store, f"ms:images-kept-by:{{{GROUP}}}") == COST


async def test_who_was_erased_is_in_no_ledger(images: Images, store: Redis) -> None:
    for owner in (ALICE, BOB):
        await images.keep(owner, PNG.image, group=GROUP)
        await show(images, owner, "a")
        await store.unlink(Place.of(Keys.of(owner, "a")).name)
        await images.forget(owner)
        await images.forget(owner, counted=True)
    assert [name async for name in store.scan_iter("ms:*")] == []


async def test_a_ledger_is_kept_longer_than_what_it_counts(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image, group=GROUP)
    for name in (f"ms:images-kept:{{{ALICE}}}", f"ms:images-kept-by:{{{GROUP}}}"):
        assert await store.ttl(name) > 3600
    await store.expire(f"ms:images-kept:{{{ALICE}}}", 10)
    await show(images, ALICE, "a")
    assert await store.ttl(f"ms:images-kept:{{{ALICE}}}") > 3600


async def test_no_number_of_images_takes_more_round_trips(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do the places where an owner has images, nor the owners behind an address."""
    await load_scripts(store)
    for owner in (ALICE, BOB, CAROL):
        await images.keep(owner, PNG.image, group=GROUP)
        await show(images, owner, "a", "b", "c")
    trips, some = RoundTrips(monkeypatch), [Picture(png(side, 2)).image for side in range(10, 15)]
    names = [image.digest for image in some]
    for count in (1, 4):
        keys = Keys.of(ALICE, f"room of {count}")
        assert await trips.of(images.keep(ALICE, *some[-count:], group=GROUP)) == 11
        assert await trips.of(images.show(ALICE, keys, names[-count:], group=GROUP)) == 12
        assert await trips.of(images.show(ALICE, keys, names[-count:], group=GROUP)) == 2
        asked = [Message("user", "What?", images=tuple(some[-count:]))]
        assert await trips.of(images.shown(keys, asked)) == 3
        assert await trips.of(images.release(keys)) == 2
        await images.forget(ALICE)


async def test_what_expired_takes_one_more_round_trip_for_each_ledger(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = [f"room {number}" for number in range(20)]
    await load_scripts(store)
    for owner in (BOB, CAROL):
        await images.keep(owner, PNG.image, group=GROUP)
        await show(images, owner, *rooms)
        await store.unlink(*(Place.of(Keys.of(owner, room)).name for room in rooms))
    assert await RoundTrips(monkeypatch).of(images.keep(ALICE, PNG.image, group=GROUP)) <= 12


async def test_of_several_images_all_are_shown_or_none(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image)
    keys = Keys.of(ALICE, "a")
    with pytest.raises(NotFound):
        await images.show(ALICE, keys, [PNG.image.digest, JPEG.image.digest])
    assert not await store.exists(Place.of(keys).name)
    await images.keep(ALICE, JPEG.image, PNG.image)
    shown = await images.show(ALICE, keys, [PNG.image.digest, JPEG.image.digest, PNG.image.digest])
    assert [one.digest for one in shown] == [one.image.digest for one in (PNG, JPEG, PNG)]
    assert await of(store, ALICE) == 2 * (COST + cost(JPEG))


async def test_large_images_enter_a_conversation_one_by_one(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one message holds few of their bytes in memory."""
    monkeypatch.setattr(images_module, "AT_ONCE_BYTES", 1)
    await images.keep(ALICE, PNG.image, JPEG.image)
    names = [one.image.digest for one in (PNG, JPEG)]
    await load_scripts(store)
    assert await RoundTrips(monkeypatch).of(images.show(ALICE, Keys.of(ALICE, "a"), names)) == 9
    read = await images.read(Keys.of(ALICE, "a"), names)
    assert [read[name].data for name in names] == [PNG.data, JPEG.data]
