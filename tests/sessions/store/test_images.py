"""Images of an owner: uploads expire one by one, conversations have copies, and each copy counts in the ledgers."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.messages import Message
from sessions.errors import NotFound
from sessions.records import Owner
from sessions.store import images as images_module
from sessions.store.client import load_scripts
from sessions.store.codec import Keys
from sessions.store.history import History
from sessions.store.images import UNSENT_S, Images
from sessions.store.ledger import Ledger
from tests.sample_images import JPEG, PNG, Picture, png
from tests.sessions.store.storage_quotas import cost, counted_bytes, of
from tests.sessions.store_round_trips import RoundTrips

ALICE, BOB = (Owner("anonymous", name) for name in ("alice", "bob"))
GROUP = "address:192.0.2.7"
COST = cost(PNG)


@pytest.fixture
def ledger(store: Redis) -> Ledger:
    return Ledger(store)


@pytest.fixture
def images(store: Redis, ledger: Ledger) -> Images:
    return Images(store, ledger=ledger)


def upload_of(owner: Owner, picture: Picture) -> str:
    return f"ms:upload:{{{owner}}}:{picture.image.digest}"


async def show(images: Images, owner: Owner, *rooms: str, picture: Picture = PNG) -> None:
    """Show an image in conversations whose messages are then accepted."""
    for room in rooms:
        await images.show(owner, Keys.of(owner, room), [picture.image.digest])
    await images._ledger.settle()


async def test_an_upload_prolongs_no_other_one(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image)
    await store.expire(upload_of(ALICE, PNG), 60)
    await images.keep(ALICE, JPEG.image)
    assert await store.ttl(upload_of(ALICE, PNG)) <= 60
    assert await store.ttl(upload_of(ALICE, JPEG)) > UNSENT_S - 60


async def test_an_upload_that_comes_again_counts_once_and_is_prolonged_once_half_of_its_time_is_over(
    images: Images, ledger: Ledger, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "ADMITTED_S", 0)
    await asyncio.gather(*(images.keep(ALICE, PNG.image, group=GROUP) for _ in range(3)))
    await store.expire(upload_of(ALICE, PNG), UNSENT_S // 2 - 1)
    await images.keep(ALICE, PNG.image, group=GROUP)
    assert await store.ttl(upload_of(ALICE, PNG)) > UNSENT_S - 60
    await ledger.settle()
    assert await of(store, ALICE) == await counted_bytes(store, f"ms:stored-by:{{{GROUP}}}") == COST


async def test_each_upload_and_each_copy_count_once_for_owner_and_address_until_they_are_deleted(
    images: Images, ledger: Ledger, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "ADMITTED_S", 0)
    for owner in (ALICE, BOB):
        await images.keep(owner, PNG.image, group=GROUP)
    await ledger.settle()
    assert [await of(store, owner) for owner in (ALICE, BOB)] == [COST, COST]
    assert await counted_bytes(store, f"ms:stored-by:{{{GROUP}}}") == 2 * COST
    await show(images, ALICE, "a", "b", "b")
    assert await of(store, ALICE) == 3 * COST
    await images.keep(ALICE, JPEG.image)
    await show(images, ALICE, "a", picture=JPEG)
    assert await of(store, ALICE) == 3 * COST + 2 * cost(JPEG)
    history = History(store, ttl_s=60, replica="here", ledger=ledger)
    for _ in range(2):
        await history.delete(Keys.of(ALICE, "a"))
        assert await of(store, ALICE) == 2 * COST + cost(JPEG)
    await images.forget_uploads(ALICE, [PNG.image.digest])
    assert await of(store, ALICE) == COST + cost(JPEG)
    assert await counted_bytes(store, f"ms:stored-by:{{{GROUP}}}") == COST


async def test_an_upload_counts_at_once(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image)
    assert await of(store, ALICE) == COST


async def test_erasure_leaves_no_upload(images: Images, ledger: Ledger, store: Redis) -> None:
    await images.keep(ALICE, PNG.image, JPEG.image)
    await images.forget(ALICE)
    await ledger.forget(str(ALICE))
    assert [name async for name in store.scan_iter("ms:*")] == []


async def test_no_number_of_images_takes_more_round_trips(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load_scripts(store)
    await images.keep(ALICE, PNG.image, group=GROUP)
    trips, some = RoundTrips(monkeypatch), [Picture(png(side, 2)).image for side in range(10, 15)]
    names = [image.digest for image in some]
    for count in (1, 4):
        keys = Keys.of(ALICE, f"room of {count}")
        assert await trips.of(images.keep(ALICE, *some[-count:], group=GROUP)) == 4
        assert await trips.of(images.show(ALICE, keys, names[-count:], group=GROUP)) == 4
        assert await trips.of(images.show(ALICE, keys, names[-count:], group=GROUP)) == 2
        requested = [Message("user", "What?", images=tuple(some[-count:]))]
        assert await trips.of(images.shown(keys, requested)) == 2
        await images.forget(ALICE)


async def test_of_several_images_all_are_shown_or_none(images: Images, store: Redis) -> None:
    await images.keep(ALICE, PNG.image)
    keys = Keys.of(ALICE, "a")
    with pytest.raises(NotFound):
        await images.show(ALICE, keys, [PNG.image.digest, JPEG.image.digest])
    assert not await store.exists(f"{keys.conversation}:images")
    await images.keep(ALICE, JPEG.image, PNG.image)
    shown = await images.show(ALICE, keys, [PNG.image.digest, JPEG.image.digest, PNG.image.digest])
    assert [one.digest for one in shown] == [one.image.digest for one in (PNG, JPEG, PNG)]


async def test_large_images_enter_a_conversation_one_by_one(
    images: Images, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So one message holds few of their bytes in memory."""
    monkeypatch.setattr(images_module, "AT_ONCE_BYTES", 1)
    await images.keep(ALICE, PNG.image, JPEG.image)
    names = [one.image.digest for one in (PNG, JPEG)]
    await load_scripts(store)
    assert await RoundTrips(monkeypatch).of(images.show(ALICE, Keys.of(ALICE, "a"), names)) == 6
    read = await images.read(Keys.of(ALICE, "a"), names)
    assert [read[name].data for name in names] == [PNG.data, JPEG.data]
