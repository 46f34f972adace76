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
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.sessions.chat_driver import eventually
from tests.store_faults import pid_of, refusing_writes, stalled

SEND = {"type": "send", "client_msg_id": "m", "content": "Hello?", "ref": "r"}


def error_fields(frame: Frame) -> tuple[str, str, str, bool]:
    return frame["type"], frame["code"], frame["ref"], frame["retryable"]


async def done(socket: Socket) -> Frame:
    async with asyncio.timeout(30):
        return (await socket.until("done"))[-1]


async def test_more_turns_than_the_server_takes_are_overload(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, max_turns=1) as running, running.socket() as socket:
        assert socket.ready["limits"]["max_active_turns"] == 1
        await socket.ask(**SEND, conversation_id="one")
        assert error_fields(await socket.ask(**SEND, conversation_id="two")) == (
            "error",
            "overloaded",
            "r",
            True,
        )
        await socket.send(type="cancel", conversation_id="one")
        await done(socket)


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


async def test_a_store_that_takes_no_writes_is_told(tmp_path: Path, store_url: str, store: Redis) -> None:
    async with (
        serving(tmp_path, redis_url=store_url) as running,
        running.socket() as socket,
        refusing_writes(store),
    ):
        assert error_fields(await socket.ask(**SEND)) == ("error", "store_unavailable", "r", True)


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


async def test_an_engine_that_dies_before_any_text_costs_one_retry(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True, reply="Here.")
    async with serving(tmp_path, engine) as running, running.socket() as socket:
        accepted = await socket.ask(**SEND)
        await eventually(lambda: bool(engine.requests))
        engine.die()
        status = await socket.next("status")
        assert (status["turn_id"], status["state"]) == (accepted["turn_id"], "retrying")
        await eventually(lambda: len(engine.requests) == 2)
        engine.step(3)
        assert (await done(socket))["reason"] == "stop"


async def test_a_deletion_is_told_to_every_connection_and_ends_the_turn(running: InProcessService) -> None:
    running.engine._by_hand = True
    ann = {"client_id": "ann"}
    async with running.socket(ann) as one, running.socket(ann) as two, running.socket(ann) as apart:
        accepted = await one.ask(**SEND)
        await two.ask(type="history")
        await two.send(type="delete", conversation_id="default", ref="d")
        assert await two.next("deleted") == {"type": "deleted", "conversation_id": "default", "ref": "d"}
        assert await one.next("deleted") == {"type": "deleted", "conversation_id": "default"}
        assert (await apart.ask(type="conversations"))["conversations"] == []
        again = await one.ask(**SEND)
        assert again["turn_id"] != accepted["turn_id"]
        assert (again["seq"], again["epoch"] != accepted["epoch"]) == (1, True)
        await one.send(type="cancel")
        await done(one)


async def test_unknown_fields_are_ignored_and_the_title_is_the_head(running: InProcessService) -> None:
    async with running.socket({"client_id": "ann", "novel": 1}) as socket:
        await socket.send(**SEND | {"content": "word " * 100}, novel={"deep": [1]}, params={"novel": 1})
        await done(socket)
        (row,) = (await socket.ask(type="conversations"))["conversations"]
        assert set(row) == {"conversation_id", "title", "updated_at", "messages"}
        assert ("word " * 100).startswith(row["title"])
        assert (0 < len(row["title"]) <= 80, row["messages"]) == (True, 2)
