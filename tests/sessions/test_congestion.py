"""Many messages at once leave the store's connections to others: nobody waits for one longer than one may."""

from __future__ import annotations

import asyncio

from redis.asyncio import ConnectionPool, Redis

from engine.scripted import ScriptedEngine
from sessions.commands.acceptance import MAX_CONCURRENT
from sessions.limits.bounds import MAX_ACCEPTING
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.client import connect
from sessions.turn.message_request import GenerationConfig, MessageRequest
from sessions.turn.policy import Policy
from tests.sessions.recorder import Recorder

CHORES = 6
"""Connections that a replica's own chores take."""


def in_use(client: Redis) -> int:
    pool = client.connection_pool
    assert isinstance(pool, ConnectionPool)
    return len(pool._in_use_connections)


async def test_messages_that_come_together_leave_connections_for_others(store: Redis, store_url: str) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with connect(store_url) as client:
        policy = Policy(ttl_s=60, max_turns=2 * MAX_ACCEPTING)
        sessions = Sessions(client=client, engine=engine, policy=policy, priority_client=store)
        async with sessions.running(alone=True):
            sends = [
                sessions.turns.send(
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
