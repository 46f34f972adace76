"""A store that is slow, refuses or is gone: replies go on, nothing is told as saved that is not, nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from engine.scripted import ScriptedEngine
from sessions import replica
from sessions.commands import turn_manager
from sessions.commands.acceptance import MAX_CONCURRENT
from sessions.errors import Busy, StoreDown
from sessions.events import Accepted, Delta, Done, Journalled, Reason, Removed, Status
from sessions.observer import Observer
from sessions.records import Client
from sessions.replicas import reaper
from sessions.running import runner
from sessions.store import journal
from sessions.store.journal import TurnJournal
from sessions.store.pool import CALL_S
from sessions.turn.message_request import Continue, Regenerate
from tests.sessions.chat_driver import Chat, eventually, running_turns_in_store, serving
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.server_group import happened, node
from tests.store_faults import pid_of, refusing_writes, stalled


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in service; and a message waits less long for an end to be saved."""
    for module in (runner, journal):
        monkeypatch.setattr(module, "PATIENCE_S", 0.25)
    monkeypatch.setattr(runner, "SAVED_WITHIN_S", 0.1)


@pytest.fixture
async def store_url(tmp_path: Path) -> AsyncIterator[str]:
    """A store of the test's own, which it may kill."""
    async with node(tmp_path / "one", save="") as one:
        yield f"redis://127.0.0.1:{one.port}"


@pytest.fixture
async def pid(store: Redis) -> int:
    """The store's process."""
    return await pid_of(store)


async def journal_is_whole(chat: Chat) -> bool:
    events = await chat.sessions.storage.history.journal(chat.keys, after_seq=0)
    return [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_a_reply_goes_on_while_the_store_stalls(chat: Chat, reader: Recorder, pid: int) -> None:
    accepted = await chat.running("Hello?", "This")
    with stalled(pid):
        while reader.text(accepted.turn_id) != "This reply was written":
            await chat.step()
        assert [status.state for status in reader.of(Status)] == ["unsaved"]
    chat.engine.step(20)
    await reader.next(Done)
    await chat.wait_idle()
    assert continuous([event for event in reader.events if not isinstance(event, Status)])
    assert await journal_is_whole(chat)
    assert await chat.messages() == [("user", "Hello?"), ("assistant", chat.engine._reply)]


async def accepts(chat: Chat) -> bool:
    """Whether the store takes a message."""
    return await chat.begin_send("Now?", client_msg_id="now") is None


async def test_a_store_that_hangs_is_an_outage_after_seconds_however_many_wait_for_it(
    chat: Chat, reader: Recorder, pid: int
) -> None:
    """Messages to one conversation wait for each other, and so do those of an address, a few at a time.

    However often the client would try again. Who wants to watch does not wait for a read behind that. For a moment calls
    fail at once, then the store is asked again.
    """
    await chat.exchange("Hello?", "Hello.")
    chat.live_conversation.others.watching = False
    sessions, owner = chat.sessions, chat.owner
    with stalled(pid):
        async with asyncio.timeout(2 * CALL_S):
            refusals = await asyncio.gather(
                sessions.history(owner, reader, "room", limit=10),
                sessions.conversations(owner, limit=10, before=None),
                sessions.watching.try_to_begin(chat.live_conversation),
                sessions.reaper.reap(within_s=0.05),
                *(chat.send("And now?") for _ in range(3)),
                *(chat.send("Hello?", conversation_id=f"room-{one}") for one in range(2 * MAX_CONCURRENT)),
                return_exceptions=True,
            )
        async with asyncio.timeout(CALL_S / 2):
            with pytest.raises(StoreDown):
                await chat.send("Again?")
    assert {type(refusal) for refusal in refusals} == {StoreDown}
    await happened(lambda: accepts(chat))
    chat.cancel()
    await chat.wait_idle()


async def test_an_end_in_a_stall_is_told_at_once_and_saved_later(chat: Chat, store: Redis, pid: int) -> None:
    accepted = await chat.running("Hello?", "This")
    with stalled(pid):
        chat.engine.step(20)
        done = await chat.reader.next(Done)
        assert (done.saved, done.reason) == (False, Reason.STOP)
    await chat.wait_idle()
    record = await chat.sessions.storage.history.turn(chat.keys, accepted.turn_id)
    assert record is not None
    assert record.done is not None
    assert (record.done.saved, record.done.text_sha256) == (True, done.text_sha256)
    assert await journal_is_whole(chat)
    assert len(chat.reader.of(Done)) == 1
    assert await running_turns_in_store(store) == 0


async def test_each_trouble_of_a_reply_is_told(chat: Chat, reader: Recorder, store: Redis) -> None:
    chat.engine.script("word " * 150)
    await chat.running("Hello?", "word")
    for trouble in (1, 2):
        async with refusing_writes(store):
            while len(reader.of(Status)) < trouble:
                await chat.step()
        while chat.live_conversation.turns[0].unsaved:
            await store.ping()  # it has answered what was written before
            await chat.step()
    chat.cancel()


async def test_a_queued_message_that_the_store_does_not_take_in_time_is_refused_and_leaves_nothing(
    chat: Chat, reader: Recorder, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply goes on; the message may be sent again under its id, also before the store is back."""
    first = await chat.running("One?", "This")
    before = len(reader.events)
    with stalling_before_a_write(pid, monkeypatch):
        with pytest.raises(StoreDown):
            await chat.send("Two?", on_busy="enqueue", client_msg_id="two")
        assert not [event for event in reader.events[before:] if isinstance(event, Accepted)]
        await chat.step()
    chat.sessions.storage.unsettled.clear()  # a reaper that looked before the write came found nothing
    while len(reader.of(Accepted)) == 1:
        again = chat.begin_send("Two?", on_busy="enqueue", client_msg_id="two")
        await eventually(lambda again=again: again.done() or len(reader.of(Accepted)) == 2)
        if again.done():
            assert isinstance(again.result(), StoreDown)
            await chat.step()
    chat.engine.step(20)
    await reader.next(Done)
    while len(reader.of(Done)) < 2:
        chat.engine.step()
        await asyncio.sleep(0)
    await chat.wait_idle()
    accepted = reader.of(Accepted)[-1]
    assert [done.turn_id for done in reader.of(Done)] == [first.turn_id, accepted.turn_id]
    assert continuous([event for event in reader.events if not isinstance(event, Status)])
    assert await journal_is_whole(chat)
    reply = chat.engine._reply
    assert await chat.texts() == ["One?", reply, "Two?", reply]
    back = Recorder()
    await chat.resume(back, 0)
    assert continuous(back.events)
    chat.leave(back)


@contextmanager
def stalling_before_a_write(pid: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store stalls from the first write of a running turn's journal on."""
    write = TurnJournal.write

    async def stalling(journal: TurnJournal, event: Journalled, patch: bytes = b"") -> bool:
        os.kill(pid, signal.SIGSTOP)
        return await write(journal, event, patch)

    monkeypatch.setattr(TurnJournal, "write", stalling)
    try:
        yield
    finally:
        monkeypatch.setattr(TurnJournal, "write", write)
        os.kill(pid, signal.SIGCONT)


async def test_a_continue_behind_a_reply_that_is_refused_leaves_its_branch_as_it_was(
    chat: Chat, reader: Recorder, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply it meant is of another branch than the one that goes on."""
    accepted = await chat.running("Hello?", "This")
    chat.cancel(accepted.turn_id)
    cut = await reader.next(Done)
    await chat.wait_idle()
    await chat.running("", "This", place=Regenerate(cut.message_id))
    with stalling_before_a_write(pid, monkeypatch), pytest.raises(StoreDown):
        await chat.send("", on_busy="enqueue", place=Continue(cut.message_id))
    chat.engine.step(20)
    await reader.next(Done, count=2)
    await chat.wait_idle()
    assert await chat.messages() == [("user", "Hello?"), ("assistant", chat.engine._reply)]


async def test_an_unsaved_reply_is_shown_to_those_who_ask(chat: Chat, reader: Recorder, store: Redis) -> None:
    """By its history, and again to a duplicate; a message behind it is refused."""
    await chat.running("Hello?", "This", client_msg_id="one")
    async with refusing_writes(store):
        chat.engine.step(20)
        await reader.next(Done)
        page = await chat.history()
        second = Recorder()
        await chat.send("Hello?", client_msg_id="one", reader=second)
        with pytest.raises(StoreDown, match="not saved"):
            await chat.send("And now?")
    assert (page.messages[-1].content, page.messages[-1].status) == (chat.engine._reply, "complete")
    assert [type(event) for event in second.events] == [Accepted, Delta, Done]
    assert (second.of(Delta)[0].text, second.of(Done)[0].saved) == (chat.engine._reply, False)
    chat.sessions.disconnect(second)
    await chat.wait_idle()
    await chat.exchange("And now?")


async def test_an_unsaved_rollback_is_not_shown(chat: Chat, reader: Recorder, store: Redis) -> None:
    await chat.running("Hello?", "This")
    async with refusing_writes(store):
        chat.cancel(rollback=True)
        await reader.next(Done)
        assert (await chat.history()).messages == []
    await chat.wait_idle()
    assert await chat.messages() == []


async def test_a_store_that_is_gone_refuses_new_turns_and_running_ones_finish(
    chat: Chat, reader: Recorder, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the server can be stopped without it."""
    monkeypatch.setattr(replica, "SAVE_S", 0.1)
    await chat.running("Hello?", "This")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(StoreDown):
        await chat.send("And now?", conversation_id="other")
    chat.engine.step(20)
    done = await reader.next(Done)
    assert (done.saved, reader.text(done.turn_id)) == (False, chat.engine._reply)
    await chat.sessions.drain(0)


def stalling(pid: int, begin: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    """The store stalls in the moment of the write."""

    async def begun(*args: Any, **options: Any) -> bool:
        os.kill(pid, signal.SIGSTOP)
        return await begin(*args, **options)

    return begun


async def test_an_acceptance_that_nobody_learned_of_is_withdrawn(
    store_url: str, store: Redis, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store carried out what its client had given up on. The conversation must not stay busy for ever."""
    monkeypatch.setattr(reaper, "REAP_S", 3600.0)  # it reaps when it is told to
    impatient = Redis.from_url(store_url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0))
    async with impatient, serving(impatient) as chat:
        history, reap = chat.sessions.storage.history, chat.sessions.reaper.reap
        await chat.exchange("Hello?", "Hello.")
        with monkeypatch.context() as patched:
            patched.setattr(history, "begin", stalling(pid, history.begin))
            assert isinstance(await chat.begin_send("And now?", client_msg_id="lost"), StoreDown)
        os.kill(pid, signal.SIGCONT)
        while not await store.hget(chat.keys.conversation, "running"):
            await store.ping()
        with pytest.raises(StoreDown, match="again in a moment"):
            await chat.send("And now?", client_msg_id="lost")
        with pytest.raises(Busy):
            await chat.send("Something else.")
        assert await reap() == 1
        assert [type(event) for event in chat.reader.events[-2:]] == [Accepted, Removed]
        await chat.exchange("And now?", "Now.", client_msg_id="lost")
        assert continuous(chat.reader.events)
        assert await chat.texts() == ["Hello?", "Hello.", "And now?", "Now."]
        assert await reap() == 0


async def test_the_reaper_outlives_all_trouble(
    chat: Chat, store: Redis, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that it can't read, a store that stalls: it looks again."""
    monkeypatch.setattr(reaper, "REAP_S", 0.01)
    monkeypatch.setattr(reaper, "SLOW_S", 0.05)
    watching = asyncio.create_task(chat.sessions.reaper.watch())
    await store.hset("ms:running", "odd", "{}")
    await asyncio.wait([watching], timeout=0.2)
    with stalled(pid):
        await asyncio.wait([watching], timeout=0.2)
    await store.delete("ms:running")
    assert not watching.done()
    watching.cancel()
    await asyncio.wait([watching])


class AbruptEngine(Observer):
    """An observer that breaks its promise."""

    def ended(self, done: Done, client: Client) -> None:
        raise ZeroDivisionError


class Hasty(Observer):
    """Another one, earlier."""

    def first_token(self, seconds: float) -> None:
        raise ZeroDivisionError


async def test_a_defect_within_a_reply_ends_it_and_stops_the_engine(
    store: Redis, engine: ScriptedEngine
) -> None:
    async with serving(store, engine, observer=Hasty()) as chat:
        await chat.running("Hello?", "This")
        done = await chat.reader.next(Done)
        assert (done.reason, done.chars) == (Reason.ERROR, 4)
        await eventually(lambda: engine.statistics().cancels == 1)


async def test_a_defect_at_an_end_costs_nobody_else_anything(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, observer=AbruptEngine()) as chat:
        await chat.exchange("Hello?", "Hello.")
        await chat.exchange("And now?", "Now.")
        assert await chat.reap() == 0
        assert await chat.texts() == ["Hello?", "Hello.", "And now?", "Now."]


async def test_a_server_stops_though_messages_wait_behind_an_end_that_is_not_saved(
    store: Redis, pid: int, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "SAVE_S", 0.1)
    monkeypatch.setattr(turn_manager, "DRAIN_CANCEL_S", 0.1)
    async with serving(store, engine) as chat:
        await chat.running("One?", "This")
        await chat.enqueue("Two?")
        os.kill(pid, signal.SIGKILL)
        chat.engine.step(20)
        assert not (await chat.reader.next(Done)).saved
    assert len(chat.reader.of(Done)) == 1
