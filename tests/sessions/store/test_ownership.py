"""Two replicas on one store: a dead one's turns are closed once, and what it writes afterwards is refused."""

from __future__ import annotations

import msgspec
import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions import replica
from sessions.errors import StoreDown
from sessions.events import Done, Reason
from sessions.records import Owner
from sessions.replicas import reaper
from sessions.service import Sessions
from sessions.store import ownership
from sessions.store.ownership import Ownership, RunningTurn
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, running_turns_in_store, serving
from tests.sessions.recorder import Recorder, continuous
from tests.store_faults import refusing_writes


async def test_a_lease_that_expired_in_an_outage_is_no_sign_of_death(
    store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reaper that looks right after the outage waits until the living replicas have renewed their leases."""
    for module, name in ((ownership, "RENEW_S"), (replica, "RENEW_S"), (reaper, "REAP_S")):
        monkeypatch.setattr(module, name, 3600.0)  # they renew and look when the test says so
    async with serving(store, alone=False) as chat, serving(store, alone=False) as second:
        other = second.sessions.reaper
        held = chat.sessions.storage.ownership
        await chat.running("Hello?", "This")
        assert await other.reap() == 0
        await chat.lose_lease()
        async with refusing_writes(store):
            for failing in (held.renew(), other.reap()):
                with pytest.raises(StoreDown):
                    await failing
        monkeypatch.setattr(ownership, "SETTLE_S", 3600.0)
        assert await other.reap() == 0
        chat.engine.step(20)
        assert (await chat.reader.next(Done)).reason is Reason.STOP
        await chat.wait_idle()
        chat.leave()


async def test_nobody_is_dead_where_no_lease_can_be_renewed(store: Redis) -> None:
    one = Ownership(store, replica="one")
    await one.renew()
    assert not await one.is_alive("two")
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await one.is_alive("two")


@pytest.mark.parametrize("ends", [False, True])
async def test_whoever_lost_a_turn_writes_no_more_and_tells_the_end_once(
    chat: Chat, other: Chat, reader: Recorder, *, ends: bool
) -> None:
    """Also if it was just about to end it."""
    await chat.running("Hello?", "This")
    await chat.lose_lease()
    await other.reap()
    if ends:
        chat.cancel()
    else:
        chat.engine.step()
    done = await reader.next(Done)
    await chat.wait_idle()
    assert (done.reason, done.chars) == (Reason.INTERRUPTED, 4)
    assert len(reader.of(Done)) == 1
    assert continuous(reader.events)
    journal = await chat.sessions.storage.history.journal(chat.keys, after_seq=0)
    assert [event.seq for event in journal] == [1, 2, 3]
    assert chat.engine.statistics().cancels == 1
    await other.exchange("And now?", "Now.", client_msg_id="two")


async def test_an_end_that_was_told_unsaved_is_not_told_again(chat: Chat, other: Chat, store: Redis) -> None:
    await chat.running("Hello?", "This")
    async with refusing_writes(store):
        chat.engine.step(20)
        assert not (await chat.reader.next(Done)).saved
    await chat.lose_lease()
    await other.reap()
    await chat.wait_idle()
    assert len(chat.reader.of(Done)) == 1


async def test_a_rollback_of_a_turn_on_another_replica_does_nothing(chat: Chat, other: Chat) -> None:
    accepted = await chat.running("Hello?", "This")
    await other.take_back(accepted.turn_id)
    assert (await chat.messages())[0] == ("user", "Hello?")
    chat.cancel()


async def abandoned(chat: Chat) -> None:
    """A service that goes down in the middle of a reply."""
    async with chat.sessions.running(alone=True):
        await chat.running("Hello?", "This")
        raise ZeroDivisionError


async def test_a_start_alone_closes_what_the_last_service_left(
    store: Redis, owner: Owner, engine: ScriptedEngine
) -> None:
    """Its lease may still be there: with an embedded store nobody else can be alive."""
    killed, successor = (
        Sessions(client=store, engine=engine, policy=Policy(ttl_s=60, max_turns=10), replica=name)
        for name in ("old", "new")
    )
    with pytest.raises(ExceptionGroup):
        await abandoned(Chat(killed, engine, owner, Recorder()))
    assert await store.exists("ms:replica:old")
    async with successor.running(alone=True):
        assert not await store.exists("ms:replica:old")
        assert await running_turns_in_store(store) == 0
        page = await Chat(successor, engine, owner, Recorder()).history()
    assert (page.messages[-1].content, page.messages[-1].status) == ("This", "interrupted")


async def test_a_turn_that_was_named_but_never_accepted_is_forgotten(
    chat: Chat, other: Chat, store: Redis
) -> None:
    accepted = await chat.running("Hello?", "This")
    own = chat.sessions.storage.ownership
    here = f"ms:running:{own.replica}"
    turn = RunningTurn(
        owner=chat.owner, conversation_id=CONVERSATION_ID, turn_id="never", replica=own.replica
    )
    await own.add(turn, queue_writes=lambda _: None)
    assert await store.hlen(here) == 2
    assert await chat.reap() == 1
    assert await store.hkeys(here) == [accepted.turn_id.encode()]
    chat.cancel()


async def test_two_reapers_close_a_turn_once(chat: Chat, other: Chat) -> None:
    accepted = await chat.running("Hello?", "This")
    await chat.lose_lease()
    orphan = (await other.sessions.storage.ownership.orphans(lambda _: True))[0]
    record = await other.sessions.storage.history.turn(chat.keys, accepted.turn_id)
    assert record is not None
    for seq in (3, 4):
        await other.sessions.reaper._end(orphan, chat.keys, record, seq=seq)
    journal = await other.sessions.storage.history.journal(chat.keys, after_seq=0)
    assert [type(event) for event in journal].count(Done) == 1
    assert [event.seq for event in journal] == [1, 2, 3]
    chat.cancel()


def row(chat: Chat, turn_id: str, replica: str) -> bytes:
    """A running turn as a replica lists it."""
    return msgspec.json.encode(
        RunningTurn(owner=chat.owner, conversation_id=CONVERSATION_ID, turn_id=turn_id, replica=replica)
    )


async def store_output_bytes(store: Redis) -> int:
    """What the store wrote to its clients so far."""
    facts: dict[str, int] = await store.info("stats")
    return facts["total_net_output_bytes"]


async def test_a_living_replicas_turns_cost_a_reaper_nothing(chat: Chat, other: Chat, store: Redis) -> None:
    """However many they are: nobody reads what a lease stands for."""
    living = other.sessions.storage.ownership.replica
    await chat.reap()
    rows = {f"turn_{number}": row(chat, f"turn_{number}", living) for number in range(20_000)}
    await store.hset(f"ms:running:{living}", mapping=rows)  # type: ignore[arg-type]
    before = await store_output_bytes(store)
    assert await chat.reap() == 0
    assert await store_output_bytes(store) - before < 20_000
    await store.delete(f"ms:running:{living}")


async def test_a_replica_that_lost_its_lease_takes_it_before_it_names_a_turn(
    chat: Chat, other: Chat, store: Redis
) -> None:
    """Else its turn would be in no set that a reaper looks at, or closed at once."""
    own = chat.sessions.storage.ownership
    await chat.lose_lease()
    await other.reap()
    assert not await store.sismember("ms:runners", own.replica)
    own._held_until = 0.0
    accepted = await chat.running("Hello?", "This")
    assert await store.sismember("ms:runners", own.replica)
    assert await other.reap() == 0
    await chat.lose_lease()
    assert await other.reap() == 1
    assert accepted.turn_id not in await store.hkeys(f"ms:running:{own.replica}")
    chat.cancel()


async def test_rows_that_can_not_be_read_keep_no_other_turn_open(
    chat: Chat, other: Chat, store: Redis
) -> None:
    """Of another version, or of a dead replica whose hash is spoiled."""
    await chat.running("Hello?", "This")
    await store.hset(f"ms:running:{chat.sessions.storage.ownership.replica}", "odd", "{}")
    await store.sadd("ms:runners", "spoiled")
    await store.set("ms:running:spoiled", "no hash")
    await chat.lose_lease()
    assert await other.reap() == 1
    assert await other.reap() == 0
    chat.cancel()
