"""What running turns write does not wait behind requests: an end is saved though every connection for those is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from redis import exceptions as errors
from redis.asyncio import ConnectionPool, Redis

from engine.scripted import ScriptedEngine
from sessions.events import Done
from sessions.records import Owner
from sessions.running import runner
from sessions.service import Sessions
from sessions.store import journal
from sessions.store.client import connect
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import Chat
from tests.sessions.recorder import Recorder

TURNS = 40


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than anybody waits for a connection that does not come."""
    for module in (runner, journal):
        monkeypatch.setattr(module, "PATIENCE_S", 0.9)


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
    store: Redis, store_url: str, owner: Owner
) -> None:
    engine = ScriptedEngine(by_hand=True, context_tokens=200)
    reader = Recorder()
    async with connect(store_url) as priority_client:
        sessions = Sessions(
            client=store,
            engine=engine,
            policy=Policy(ttl_s=60, max_turns=100),
            priority_client=priority_client,
        )
        async with sessions.running(alone=True):
            chat = Chat(sessions, engine, owner, reader)
            turns = [
                (await chat.running("Hello?", "This", conversation_id=f"room-{number}")).turn_id
                for number in range(TURNS)
            ]
            async with starved(store):
                for turn in turns:
                    chat.cancel(turn)
                async with asyncio.timeout(30):
                    await reader.next(Done, count=TURNS)
                assert all(done.saved for done in reader.of(Done))
            await chat.wait_idle()
            chat.leave()
