"""Every code with which the server can refuse a request, over a real socket; and how failing replies end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from connections.connection import MAX_REQUESTS
from engine.scripted import ScriptedEngine
from sessions.running import runner
from sessions.service import Sessions
from sessions.store import journal
from tests.app.in_process_service import Frame, Socket, serving
from tests.store_faults import pid_of, stalled

SEND = {"type": "send", "client_msg_id": "m", "content": "Hello?", "ref": "r"}


def error_fields(frame: Frame) -> tuple[str, str, str, bool]:
    return frame["type"], frame["code"], frame["ref"], frame["retryable"]


async def done(socket: Socket) -> Frame:
    async with asyncio.timeout(30):
        return (await socket.until("done"))[-1]


async def test_an_engine_that_gave_up_is_unavailable(tmp_path: Path) -> None:
    async with serving(tmp_path) as running, running.socket() as socket:
        running.engine.fail()
        assert error_fields(await socket.ask(**SEND)) == ("error", "engine_unavailable", "r", True)


async def test_a_running_reply_outlives_a_stalled_store(
    tmp_path: Path, store_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply goes on from memory. The client is told that, and that its end is not saved."""
    engine = ScriptedEngine(by_hand=True, reply="one two three")
    async with serving(tmp_path, engine, redis_url=store_url) as service, service.socket() as socket:
        accepted = await socket.ask(**SEND)
        engine.step()
        await socket.next("delta")
        for module in (runner, journal):
            monkeypatch.setattr(module, "PATIENCE_S", 0.25)
        with stalled(await pid_of(store)):
            engine.step()
            frames = await socket.until("delta")
            assert {**frames[0], "turn_id": ""} == {
                "type": "status",
                "conversation_id": "default",
                "turn_id": "",
                "state": "unsaved",
            }
            engine.step(5)
            end = await done(socket)
        assert (end["turn_id"], end["reason"], end["saved"]) == (accepted["turn_id"], "stop", False)


async def test_a_defect_is_a_number_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise LookupError("a secret of the service")

    async with serving(tmp_path) as running, running.socket() as socket:
        monkeypatch.setattr(Sessions, "conversations", broken)
        refused = await socket.ask(type="conversations", ref="r")
        assert error_fields(refused) == ("error", "internal", "r", False)
        assert "secret" not in refused["message"]
        assert (await socket.ask(type="ping"))["type"] == "pong"


async def test_requests_beyond_a_connections_share_are_refused(
    tmp_path: Path, store_url: str, store: Redis
) -> None:
    async with serving(tmp_path, redis_url=store_url) as running, running.socket() as socket:
        with stalled(await pid_of(store)):
            for number in range(MAX_REQUESTS + 1):
                await socket.send(type="conversations", ref=f"r{number}")
            assert error_fields(await socket.next()) == ("error", "overloaded", f"r{MAX_REQUESTS}", True)
