"""A sessions floor over an empty store and an engine that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions import replica
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store import ownership
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import Chat, eventually, serving
from tests.sessions.recorder import Recorder


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores of tests have worked for long: a replica without a lease is dead."""
    monkeypatch.setattr(ownership, "SETTLE_S", 0.0)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a replica looks at now and then it looks at often."""
    monkeypatch.setattr(replica, "RENEW_S", 0.02)


@pytest.fixture
def owner() -> Owner:
    return Owner("anonymous", "alice")


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(by_hand=True, context_tokens=200)


@pytest.fixture
async def sessions(store: Redis, engine: ScriptedEngine) -> AsyncIterator[Sessions]:
    """The floor; when the test is over it must have let go of all it held."""
    sessions = Sessions(client=store, engine=engine, policy=Policy(ttl_s=3600, max_turns=100))
    async with sessions.running(alone=True):
        yield sessions
    assert sessions.statistics().turns == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def reader(sessions: Sessions) -> AsyncIterator[Recorder]:
    """A connection that leaves at the end; with it goes all that the floor kept in memory."""
    reader = Recorder()
    yield reader
    reader.closed = True
    sessions.disconnect(reader)


@pytest.fixture
def chat(sessions: Sessions, engine: ScriptedEngine, owner: Owner, reader: Recorder) -> Chat:
    return Chat(sessions, engine, owner, reader)


@pytest.fixture
async def other(store: Redis, sessions: Sessions) -> AsyncIterator[Chat]:
    """The same owner on a second replica; nothing is left there at the end."""
    async with serving(store, alone=False) as second:
        yield second
        second.leave()
        await eventually(lambda: second.sessions.statistics().conversations == 0)
