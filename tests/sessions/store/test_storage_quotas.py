"""Nobody takes the store from the others: owners, keys and addresses have shares of what is free, and what is gone counts no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.errors import StoreDown
from sessions.events import CallState, Reason
from sessions.limits.shares import Subject
from sessions.records import Owner
from sessions.store.codec import Keys
from sessions.store.images import Images
from sessions.store.ledger import COPIES, MESSAGE_BYTES, Ledger, StoreFull
from tests.sample_images import Picture, chunk, png
from tests.sessions.chat_driver import Chat, eventually, running_turns_in_store, serving
from tests.sessions.store.storage_quotas import MIB, counted_bytes, ledger_with_room, of, size_with_room, used
from tests.sessions.tool_round.sample_tools import BERN, TOOLS
from tests.store_faults import refusing_writes, without_memory

ALICE, BOB = (Owner("anonymous", name) for name in ("alice", "bob"))
ADDRESS, KEY = "address:192.0.2.7", "key:app"
ROOM = 32 * MIB


def picture(number: int, size: int = MIB // 2) -> Picture:
    """One that no other one is, of about this size."""
    return Picture(png(more=chunk(b"pRIv", number.to_bytes(8) + bytes(size))))


async def fill(ledger: Ledger, store: Redis, *owners: Owner, group: str = "", size: int = MIB // 2) -> int:
    """Upload for some owners, in turn, until all are refused; return the store's growth in bytes."""
    before, images = await used(store), Images(store, ledger=ledger)
    number, refused = 0, set[Owner]()
    while len(refused) < len(owners):
        number += 1
        owner = owners[number % len(owners)]
        try:
            await images.keep(owner, picture(number, size).image, group=group)
        except StoreFull:
            refused.add(owner)
    return await used(store) - before


def owners(count: int) -> list[Owner]:
    return [Owner("anonymous", f"made up {number}") for number in range(count)]


@pytest.mark.parametrize(
    ("count", "group", "least", "most"),
    [(1, "", ROOM / 6, ROOM / 3.5), (20, ADDRESS, ROOM / 5, ROOM / 2.5), (20, KEY, ROOM / 2, ROOM / 1.25)],
    ids=["an owner a quarter", "an address a third", "a key three quarters"],
)
async def test_each_takes_a_share_of_the_room_under_any_number_of_names(
    store: Redis, count: int, group: str, least: float, most: float
) -> None:
    ledger = await ledger_with_room(store, ROOM)
    assert least < await fill(ledger, store, *owners(count), group=group) < most
    await Images(store, ledger=ledger).keep(BOB, picture(0).image, group=group and "key:other")


async def test_any_number_of_owners_leave_the_reserve_and_room_for_another_one(store: Redis) -> None:
    """Nothing is known of their address, as behind a proxy on this machine that is not named in the settings."""
    ledger = await ledger_with_room(store, ROOM)
    assert await fill(ledger, store, *owners(60), size=MIB // 4) < ROOM
    assert ledger.memory.free > 0
    await ledger.admit(Subject(str(BOB)), MESSAGE_BYTES, lifetime_s=60)


async def test_a_refusal_counts_nothing(store: Redis) -> None:
    ledger = await ledger_with_room(store, ROOM)
    for group in ("", ADDRESS):
        with pytest.raises(StoreFull):
            await ledger.admit(Subject(str(ALICE), group), ROOM, lifetime_s=60)
    assert await store.keys("ms:stored*") == []


async def test_bytes_that_have_expired_count_no_longer(store: Redis) -> None:
    """Nobody reports them."""
    ledger = Ledger(store)
    for name in (f"ms:stored:{{{ALICE}}}", f"ms:stored-by:{{{ADDRESS}}}"):
        await store.hset(name, "1000", 10**12)  # type: ignore[misc]
    await ledger.admit(Subject(str(ALICE), ADDRESS), 1, lifetime_s=60)
    for name in (f"ms:stored:{{{ALICE}}}", f"ms:stored-by:{{{ADDRESS}}}"):
        assert await counted_bytes(store, name) == 1
        assert 0 < await store.ttl(name) <= 60 + 60 / 8


async def test_a_ledger_has_few_fields_however_much_it_counts(store: Redis) -> None:
    ledger = Ledger(store)
    for lifetime_s in (60, 900, 3600, 86_400):
        for number in range(12):
            await ledger.admit(Subject(str(ALICE)), 1, lifetime_s=lifetime_s + number / 1000)
    assert await store.hlen(f"ms:stored:{{{ALICE}}}") <= 8  # type: ignore[misc]
    assert await of(store, ALICE) == 48


async def test_a_conversation_counts_about_what_it_takes(chat: Chat, store: Redis) -> None:
    """The store is asked for an average of some fields, and must not miss a few long ones among many."""

    async def counted() -> int:
        await chat.wait_idle()
        charged: bytes = await store.hget(chat.keys.conversation, "charged")  # type: ignore[misc]
        return int(charged.split(b" ")[1])

    for number in range(12):
        await chat.exchange(f"{number} " + "x" * 2000 * (number % 3), "Well. " * 10)
    taken = int(await store.memory_usage(chat.keys.conversation, samples=0) or 0)
    assert 0.6 * taken < await counted() < 1.6 * taken
    fields = {f"note:{number}": "x" * (100_000 if number % 100 == 0 else 100) for number in range(800)}
    await store.hset(chat.keys.conversation, mapping=fields)  # type: ignore[misc]
    await chat.exchange("And now?", "Now.")
    assert 800_000 < await counted() < 1_100_000


async def test_a_note_takes_room_at_once(chat: Chat) -> None:
    """Until it is measured, as what a message brings."""
    done = await chat.exchange("Hello?", "Hello.")
    await chat.wait_idle()
    storage = chat.sessions.storage
    await storage.ledger.memory.up_to_date()
    free = storage.ledger.memory.free
    assert await storage.notes.keep(chat.owner, "room", done.turn_id, bytes(100_000))
    assert storage.ledger.memory.free < free - 90_000


async def test_messages_and_replies_count_and_deletion_gives_their_bytes_back(
    chat: Chat, store: Redis
) -> None:
    ledger = chat.sessions.storage.ledger
    await chat.exchange("x" * 5000, "Well.")
    await chat.wait_idle()
    await ledger.settle()
    whole = await of(store, chat.owner)
    assert whole > MESSAGE_BYTES + (COPIES + 1) * 5000
    await chat.sessions.delete(chat.owner, "room", ref=None, subscriber=chat.reader)
    left = await of(store, chat.owner)
    assert left < whole - 5000
    await store.unlink(f"ms:stored:{{{chat.owner}}}")  # what was counted for the journal
    await ledger.settle()
    assert await of(store, chat.owner) == 0


async def test_a_conversation_counts_for_whom_it_is_kept_now(chat: Chat, store: Redis) -> None:
    """Its bytes move with the last message: what an address wrote does not count there once another one goes on with it."""
    ledger = chat.sessions.storage.ledger
    for field, group in ((b"2000000000000", ADDRESS), (b"2000000000001", KEY)):
        ledger.recharge(str(ALICE), [b"", field + b" 100 " + group.encode()])
        await ledger.settle()
    ledger.recharge(
        str(ALICE), [b"2000000000000 100 " + ADDRESS.encode(), b"2000000000001 70 " + KEY.encode()]
    )
    await ledger.settle()
    assert await counted_bytes(store, f"ms:stored-by:{{{ADDRESS}}}") == 0
    assert await counted_bytes(store, f"ms:stored-by:{{{KEY}}}") == 170
    assert await of(store, ALICE) == 170


async def test_differences_wait_for_the_store_and_are_written_even_if_it_is_full(store: Redis) -> None:
    """Else what is deleted there would count on."""
    ledger = Ledger(store)
    await ledger.admit(Subject(str(ALICE)), 1, lifetime_s=60)
    ledger.journalled(Subject(str(ALICE)), 100)
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await ledger.settle()
    ledger.journalled(Subject(str(ALICE)), 10)
    async with without_memory(store):
        await ledger.settle()
    assert await of(store, ALICE) == 111


@asynccontextmanager
async def chatting(store: Redis, *, room: int) -> AsyncIterator[Chat]:
    """A chat over a store in which growth may take so many bytes more."""
    engine = ScriptedEngine(by_hand=True, context_tokens=100_000)
    size = await size_with_room(store, room)
    async with serving(store, engine, alone=False, sharing=True, store_bytes=size) as chat:
        yield chat
        chat.leave()


async def exhaust(ledger: Ledger, owner: Owner) -> None:
    """Use up an owner's share. Raises StoreFull."""
    while True:
        await ledger.admit(Subject(str(owner)), MIB // 16, lifetime_s=60)


async def overfill(chat: Chat, store: Redis) -> None:
    """Have the store hold more than growth may."""
    await store.set("filler", bytes(2 * MIB))
    chat.sessions.memory.grew(MIB)  # it measures again
    await chat.sessions.memory.up_to_date()
    assert chat.sessions.memory.is_full


async def test_a_refused_message_leaves_no_trace(store: Redis, owner: Owner) -> None:
    async with chatting(store, room=2 * MIB) as chat:
        await chat.exchange("Hello?", "Hello.")
        await chat.wait_idle()
        with pytest.raises(StoreFull):
            await exhaust(chat.sessions.storage.ledger, owner)
        with pytest.raises(StoreFull, match="You have stored as much"):
            await chat.send("word " * 10_000, conversation_id="other")
        assert not await store.exists(Keys.of(owner, "other").conversation)
        page = await chat.sessions.conversations(owner, limit=20, before=None)
        assert [row.conversation_id for row in page.conversations] == ["room"]
        assert await running_turns_in_store(store) == 0
        await chat.exchange("And now?", "Now.")


async def test_a_conversation_without_messages_needs_room_and_begins_once(store: Redis, owner: Owner) -> None:
    async with chatting(store, room=2 * MIB) as chat:
        kept, notes, ledger = (
            chat.sessions.kept,
            chat.sessions.notes,
            chat.sessions.storage.ledger,
        )
        await notes.describe(owner, "empty", bytes(1000))
        await notes.describe(owner, "empty", b"")
        await ledger.settle()
        assert await of(store, owner) > 1000
        with pytest.raises(StoreFull):
            await exhaust(ledger, owner)
        with pytest.raises(StoreFull):
            await notes.describe(owner, "another", bytes(MIB // 16))
        assert await kept.conversation(owner, "another") is None
        await chat.sessions.delete(owner, "empty", ref=None, subscriber=chat.reader)
        assert await kept.conversation(owner, "empty") is None


async def test_in_a_full_store_people_end_replies_read_and_delete(store: Redis, owner: Owner) -> None:
    """A message for which there is no room interrupts nothing."""
    async with chatting(store, room=MIB) as chat:
        asked = await chat.play("Weather?", "I look.", BERN, tools=TOOLS, conversation_id="other")
        running = await chat.running("Hello?", "This")
        await overfill(chat, store)
        for on_busy in ("interrupt", "enqueue"):
            with pytest.raises(StoreFull):
                await chat.send("Stop!", on_busy=on_busy)  # type: ignore[arg-type]
        assert (await chat.finish(running.turn_id)).saved
        assert await chat.messages() == [("user", "Hello?"), ("assistant", chat.engine._reply)]
        with pytest.raises(StoreFull):
            await chat.result(asked.open[0], "Rain.", place="other")
        with pytest.raises(StoreFull):
            await chat.sessions.share(owner, "room")
        await chat.sessions.rename(owner, "room", "Another title")
        assert [one async for one in chat.sessions.export(owner)]
        assert {one async for one in chat.sessions.erase(owner)} == {"room", "other"}


async def test_in_a_full_store_a_reply_that_calls_is_the_last_one(store: Redis) -> None:
    async with chatting(store, room=MIB) as chat:
        chat.engine.script(["I look.", BERN])
        accepted = await chat.send("Weather?", tools=TOOLS)
        await eventually(lambda: bool(chat.engine.requests))
        await overfill(chat, store)
        done = await chat.finish(accepted.turn_id)
        assert (done.reason, done.open) == (Reason.STOP, ())
        await chat.wait_idle()
        page = await chat.history()
        assert [call.state for call in page.messages[-1].calls or ()] == [CallState.CANCELLED]


async def test_a_deleted_conversation_leaves_nothing_but_a_count(store: Redis, owner: Owner) -> None:
    """Links to deleted conversations, which no ledger counts, would fill the store within a day."""
    async with chatting(store, room=MIB) as chat:
        before = set(await store.keys("*"))
        await chat.exchange("Hello?", "Hello.")
        await chat.wait_idle()
        await chat.sessions.share(owner, "room")
        await chat.sessions.delete(owner, "room", ref=None, subscriber=chat.reader)
        assert {*await store.keys("*")} - before == {f"ms:stored:{{{owner}}}".encode()}
