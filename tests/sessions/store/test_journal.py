"""All turns write through one pipeline at a time; a turn whose store lags catches up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import Removed
from sessions.limits.shares import Subject
from sessions.store.client import load_scripts
from sessions.store.journal import AT_ONCE, Entry, Journal, TurnJournal
from sessions.store.ledger import Ledger
from tests.sessions.chat_driver import eventually


def keys(name: str) -> tuple[str, str]:
    return f"{{{name}}}", f"{{{name}}}:journal"


async def open_turns(store: Redis, *names: str) -> None:
    """As if each of these had a turn of its own name under way, its `accepted` as event 1."""
    await load_scripts(store)
    for name in names:
        await store.hset(keys(name)[0], mapping={"running": name, "seq": 1})


async def seqs(store: Redis, name: str) -> list[bytes]:
    rows = cast("list[tuple[bytes, object]]", await store.xrange(keys(name)[1]))
    return [seq for seq, _ in rows]


def event(seq: int) -> Removed:
    return Removed(conversation_id="a", turn_id="a", seq=seq)


def turn_of(journal: Journal) -> TurnJournal:
    """The journal of turn `a`."""
    subject = Subject("anonymous/alice")
    return TurnJournal(journal, keys=keys("a"), turn_id="a", ledger=Ledger(journal._client), subject=subject)


@pytest.fixture
async def journal(store: Redis) -> AsyncIterator[Journal]:
    journal = Journal(store, replica="here")
    running = asyncio.create_task(journal.run())
    yield journal
    running.cancel()
    await asyncio.wait([running])


async def test_many_turns_share_a_pipeline(store: Redis, journal: Journal) -> None:
    names = [f"turn-{number}" for number in range(50)]
    await open_turns(store, *names)
    writes = [journal.put_nowait(keys(name), name, [Entry(2, b"event")]) for name in names]
    await asyncio.gather(*writes)
    assert journal.pipelines == 1
    assert [await seqs(store, name) for name in names] == [[b"2-0"]] * 50


async def test_what_comes_during_a_pipeline_makes_the_next(store: Redis, journal: Journal) -> None:
    await open_turns(store, "a")
    first = journal.put_nowait(keys("a"), "a", [Entry(2, b"event")])
    await eventually(lambda: journal.pipelines == 1)
    rest = [journal.put_nowait(keys("a"), "a", [Entry(seq, b"event")]) for seq in (3, 4)]
    await asyncio.gather(first, *rest)
    assert journal.pipelines == 2
    assert await seqs(store, "a") == [b"2-0", b"3-0", b"4-0"]


async def test_a_server_that_forgets_its_scripts_again_at_once_is_down(
    store: Redis, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that dies twice in a moment: that is an outage, and no fault of a turn's data."""
    names = [f"turn-{number}" for number in range(AT_ONCE + 1)]  # more than one call writes
    await open_turns(store, *names)
    await store.script_flush()

    async def load_and_forget(client: Redis) -> None:
        await load_scripts(client)
        await store.script_flush()

    monkeypatch.setattr("sessions.store.journal.load_scripts", load_and_forget)
    writes = [journal.put_nowait(keys(name), name, [Entry(2, b"event")]) for name in names]
    with pytest.raises(StoreDown) as trouble:
        await asyncio.gather(*writes)
    await asyncio.gather(*writes, return_exceptions=True)
    assert not isinstance(trouble.value, StoreFault)


async def test_a_lost_turn_or_a_refused_write_is_no_trouble_for_the_others(
    store: Redis, journal: Journal
) -> None:
    await open_turns(store, "a")
    await store.set(keys("c")[0], "no hash")
    lost, refused, kept = (journal.put_nowait(keys(name), name, [Entry(2, b"event")]) for name in "bca")
    await kept
    with pytest.raises(OwnershipLost):
        await lost
    with pytest.raises(StoreFault):
        await refused


async def test_a_writer_that_no_longer_waits_is_left_alone(store: Redis, journal: Journal) -> None:
    await open_turns(store, "a")
    journal.put_nowait(keys("a"), "a", [Entry(2, b"event")]).cancel()
    await journal.put_nowait(keys("a"), "a", [Entry(3, b"event")])
    assert await seqs(store, "a") == [b"2-0", b"3-0"]


async def test_a_lost_turn_stays_lost_though_the_store_is_late(
    store: Redis, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else events would be told as unsaved behind a seq that nobody was told."""
    turn = turn_of(journal)
    await load_scripts(store)
    with pytest.raises(OwnershipLost):
        await turn.write(event(2))
    monkeypatch.setattr("sessions.store.journal.PATIENCE_S", 0.0)
    with pytest.raises(OwnershipLost):
        await turn.write(event(3))
    with pytest.raises(OwnershipLost):
        await turn.catch_up()


async def test_what_is_dropped_is_never_waited_for_and_does_not_count_as_written(
    store: Redis, journal: Journal
) -> None:
    await open_turns(store, "a")
    turn = turn_of(journal)
    writing = asyncio.ensure_future(turn.write(event(2)))
    await eventually(lambda: turn._writing is not None)
    turn.drop()
    with pytest.raises(OwnershipLost):
        await writing
    await turn.write_rest()


async def test_a_turn_goes_on_in_the_turn_of_the_loop_behind_the_stores_answer(
    store: Redis, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn of the loop is behind all others' work, and a text waits for it."""
    await open_turns(store, "a")
    turns, answered, resolve = 0, 0, journal._resolve

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def noted(*on_written: Any) -> None:
        nonlocal answered
        answered = turns
        resolve(*on_written)

    taking = asyncio.create_task(take_turns())
    monkeypatch.setattr(journal, "_resolve", noted)
    assert await turn_of(journal).write(event(2))
    taking.cancel()
    assert turns <= answered + 1


async def test_all_who_wait_for_a_write_of_a_turn_go_on(store: Redis, journal: Journal) -> None:
    """A tool's outcome is written beside the text, and a wait for it has no limit."""
    await open_turns(store, "a")
    turn = turn_of(journal)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(turn.write(event(2)))
        tasks.create_task(turn.write_rest())
        tasks.create_task(turn.catch_up())
    assert await seqs(store, "a") == [b"2-0"]
