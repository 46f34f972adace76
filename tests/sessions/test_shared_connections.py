"""Many messages share the store's connections: nobody waits for one longer than need be, and an end waits for none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from redis import exceptions as errors
from redis.asyncio import ConnectionPool, Redis

from engine.scripted import ScriptedEngine
from sessions.commands.acceptance import MAX_CONCURRENT
from sessions.events import Done
from sessions.limits.bounds import MAX_ACCEPTING
from sessions.records import Owner
from sessions.running import runner
from sessions.store import journal
from sessions.store.client import connect, load_scripts
from sessions.turn.message_request import GenerationConfig, MessageRequest
from tests.sessions.chat_driver import Chat, serving
from tests.sessions.recorder import Recorder
from tests.sessions.store_round_trips import RoundTrips

CHORES = 6
"""Connections that a replica's own chores take."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than anybody waits for a connection that does not come."""
    for module in (runner, journal):
        monkeypatch.setattr(module, "PATIENCE_S", 0.9)


def in_use(client: Redis) -> int:
    pool = client.connection_pool
    assert isinstance(pool, ConnectionPool)
    return len(pool._in_use_connections)


async def test_messages_that_come_together_leave_connections_for_others(store: Redis, store_url: str) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with connect(store_url) as client:
        turns = 2 * MAX_ACCEPTING
        async with serving(client, engine, priority_client=store, max_turns=turns) as chat:
            sends = [
                chat.sessions.turns.send(
                    Owner("anonymous", f"owner-{number}"),
                    Recorder(),
                    MessageRequest(
                        client_msg_id="m", conversation_id="c", content="Hello?", on_disconnect="continue"
                    ),
                    GenerationConfig(),
                )
                for number in range(MAX_ACCEPTING)
            ]
            most = 0
            while not all(send.done() for send in sends):
                most = max(most, in_use(client))
                await asyncio.sleep(0)
            assert [send.result() for send in sends] == [None] * MAX_ACCEPTING
            assert most <= MAX_CONCURRENT + CHORES


TURNS = 40


@asynccontextmanager
async def starved(client: Redis) -> AsyncIterator[None]:
    """All of its connections are in use."""
    pool = client.connection_pool
    assert isinstance(pool, ConnectionPool)
    async with AsyncExitStack() as taken:
        with suppress(errors.ConnectionError):  # no more of them, after a second
            for _ in range(pool.max_connections):
                taken.push_async_callback(pool.release, await pool.get_connection())
        yield


async def test_a_burst_of_cancels_is_saved_while_requests_wait_for_connections(
    store: Redis, store_url: str
) -> None:
    async with (
        connect(store_url) as priority_client,
        serving(store, priority_client=priority_client) as chat,
    ):
        turns = [
            (await chat.running("Hello?", "This", conversation_id=f"room-{number}")).turn_id
            for number in range(TURNS)
        ]
        async with starved(store):
            for turn in turns:
                chat.cancel(turn)
            async with asyncio.timeout(30):
                await chat.reader.next(Done, count=TURNS)
            assert all(done.saved for done in chat.reader.of(Done))
        await chat.wait_idle()
        chat.leave()


async def test_a_message_asks_the_store_four_times_up_to_its_first_text(
    chat: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the facts and a turn of the same id, to list the turn and the conversation, to accept it, and to write the text."""
    await load_scripts(store)
    trips = RoundTrips(monkeypatch)
    accepted = await chat.running("Hello?", "This")
    assert trips.about(chat.owner, accepted.turn_id) == 4
