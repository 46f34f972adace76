"""Moments in which two things happen at once: nothing is lost, nothing is told twice, nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from sessions.conversation.conversation import Conversation
from sessions.events import Accepted, Deleted, Delta, Done, Reason, Removed
from sessions.store.client import WATCH, Script, run_script
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder, continuous


async def test_an_exchange_taken_back_before_its_end_came_here_is_told_in_order(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other replica wrote its end; its news of that are still on their way."""
    await chat.exchange("Hello?", "Hello.")
    await other.history()
    monkeypatch.setattr(other.sessions.relay, "_take", lambda message: None)
    done = await chat.exchange("And now?", "Now.")
    await other.take_back(done.turn_id)
    assert [type(event) for event in other.reader.events][-2:] == [Done, Removed]
    assert continuous(other.reader.events)


async def test_an_exchange_taken_back_on_two_replicas_leaves_once(chat: Chat, other: Chat) -> None:
    done = await chat.exchange("Hello?", "Hello.")
    await other.history()
    await asyncio.gather(
        *(one.take_back(done.turn_id) for one in (chat, other)),
    )
    await asyncio.gather(*(one.next(Removed) for one in (chat.reader, other.reader)))
    await asyncio.gather(*(one.messages() for one in (chat, other)))
    assert [len(one.of(Removed)) for one in (chat.reader, other.reader)] == [1, 1]
    assert await chat.messages() == []


async def test_one_who_comes_on_another_replica_in_the_moment_of_the_last_ones_leaving_keeps_the_turn(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store names nobody to the one who leaves, and that answer comes behind the news of who came then."""
    await chat.running("Hello?", "This", grace_s=60)

    async def slowly(client: Redis, script: Script, keys: list[str], args: list[str]) -> Any:
        answer = await run_script(client, script, keys, args)
        if script is WATCH and not args[0] and not other.reader.events:
            other.reader.publish((await other.shown(other.reader)).page)
            await eventually(lambda: chat.live_conversation.others.watched)
        return answer

    monkeypatch.setattr("sessions.replicas.relay.run_script", slowly)
    chat.leave()
    await eventually(lambda: not chat.live_conversation.others.watching)
    assert chat.live_conversation.others.watched
    assert not chat.live_conversation.turns[0].turn.is_over
    chat.engine.step(20)
    assert (await other.reader.next(Done)).reason is Reason.STOP


async def test_a_conversation_that_is_deleted_by_several_at_once_is_told_as_deleted_to_each(
    chat: Chat, reader: Recorder
) -> None:
    """None of them is told that there is no such conversation."""
    await chat.exchange("Hello?", "Hello.")
    second = Recorder()
    await asyncio.gather(
        *(
            chat.sessions.delete(chat.owner, CONVERSATION_ID, ref=ref, subscriber=by)
            for by, ref in ((reader, "a"), (reader, "b"), (second, "c"))
        )
    )
    assert [[event.ref for event in one.of(Deleted)] for one in (reader, second)] == [["a", "b"], ["c"]]


async def test_a_message_of_another_version_ends_nothing(chat: Chat, other: Chat, store: Redis) -> None:
    await chat.exchange("Hello?", "Hello.")
    await other.history()
    key = chat.keys.conversation
    channel = f"ms:to:{other.sessions.storage.ownership.replica}"
    for odd in (f'event {len(key)} {key}{{"type":"new"}}', "event", "event x y", "else 1 2"):
        await store.publish(channel, odd)
    await chat.exchange("And now?", "Now.")
    await other.reader.next(Done)
    assert continuous(other.reader.events)


async def test_a_message_behind_a_deletion_on_another_replica_begins_anew_and_is_told_so_first(
    chat: Chat, other: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It overtook the news of the deletion, which then say nothing about the conversation that it began."""
    await chat.exchange("Hello?", "Hello.")
    await other.history()
    late: list[bytes] = []
    take = other.sessions.relay._take
    monkeypatch.setattr(other.sessions.relay, "_take", late.append)
    await chat.sessions.delete(chat.owner, CONVERSATION_ID, ref="gone", subscriber=chat.reader)
    await other.running("Anew?", "This", client_msg_id="two")
    for message in late:
        take(message)
    other.engine.step(20)
    await other.reader.next(Done)
    kinds = [type(event) for event in other.reader.events if not isinstance(event, Delta)]
    assert kinds == [Deleted, Accepted, Done]
    chat.leave()


async def test_a_turn_that_began_elsewhere_in_the_moment_of_a_deletion_has_its_end_first(
    chat: Chat, other: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chat.exchange("Hello?", "Hello.")
    runner_of = chat.sessions.forwarder.runner_of

    async def too_early(live_conversation: Conversation) -> str | None:
        runner = await runner_of(live_conversation)
        if not other.engine.requests:
            await other.running("And now?", "This", client_msg_id="two")
        return runner

    monkeypatch.setattr(chat.sessions.forwarder, "runner_of", too_early)
    await chat.sessions.delete(chat.owner, CONVERSATION_ID, ref="gone", subscriber=reader)
    await other.reader.next(Deleted)
    assert [type(event) for event in other.reader.events[-2:]] == [Done, Deleted]
    assert [event.ref for event in reader.of(Deleted)] == ["gone"]


async def test_a_message_that_comes_while_the_next_turn_is_being_begun_waits_behind_that(
    chat: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is accepted as soon as that runs, not when that has ended."""
    await chat.running("One?", "This")
    await chat.enqueue("Two?")
    start, came = chat.sessions.storage.history.start, asyncio.Event()

    async def slowly(*args: Any, **options: Any) -> bool:
        await came.wait()
        return await start(*args, **options)

    monkeypatch.setattr(chat.sessions.storage.history, "start", slowly)
    chat.engine.step(20)
    await reader.next(Done)
    chat.begin_send("Three?", on_busy="enqueue")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    came.set()
    assert (await reader.next(Accepted, count=3)).queue_position == 1
    assert len(reader.of(Done)) == 1
    chat.cancel()
    await chat.wait_idle()
    assert continuous(reader.events)
