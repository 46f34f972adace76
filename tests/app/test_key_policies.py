"""Keys that expire, keys with few permissions or limits of their own; limits that change while the service runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from app import parts
from app.keys import add_key
from connections.authentication.api_keys import KeyPolicy, parse_policy
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.in_process_service import Socket, serving
from tests.app.test_authentication import ticket
from tests.app.test_frames import send_and_wait
from tests.sessions.recorder import WAIT_S

CHAT = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}


async def test_a_key_that_expires_ends_its_connections_and_opens_no_door(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHECK_S", 0.05)
    async with serving(tmp_path, api_keys=str(keys)) as running, AsyncExitStack() as stack:
        key = add_key(keys, "ann", policy=KeyPolicy(expires_at=time.time() + 2.0))
        socket = await stack.enter_async_context(running.socket({"token": key}))
        theirs = await ticket(running, key)
        error = await socket.next("error")
        assert (error["code"], error["message"], error["retryable"]) == (
            "unauthenticated",
            "The key has expired.",
            False,
        )
        assert await socket.closed() == (4401, "The key has expired.")
        for shown in (key, theirs):
            async with connect(running.ws_url) as opened:
                await Socket(opened).send(type="hello", token=shown)
                assert (await Socket(opened).next())["message"] == "The key has expired."
        answer = await running.request("POST", "/v1/chat/completions", key, json=CHAT)
        assert (answer.status_code, answer.json()["error"]["message"]) == (401, "The key has expired.")
        assert (await running.request("GET", "/v1/export", key)).status_code == 401


async def test_a_ticket_does_what_its_keys_scope_names(keys: Path, tmp_path: Path) -> None:
    """Keys: `tests/transcripts/native/scopes.yaml`, `chat-completions/scopes.yaml`."""
    key = add_key(keys, "ann", policy=parse_policy(["scopes=read"]))
    async with (
        serving(tmp_path, api_keys=str(keys)) as running,
        running.socket({"token": await ticket(running, key)}) as socket,
    ):
        assert (await socket.ask(type="conversations"))["conversations"] == []
        refused = await socket.ask(type="send", client_msg_id="m", content="Hello?")
        assert refused["code"] == "forbidden"


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
async def test_a_key_without_the_scope_chat_hears_and_speaks_nothing(keys: Path, tmp_path: Path) -> None:
    key = add_key(keys, "ann", policy=parse_policy(["scopes=read|manage"]))
    async with serving(tmp_path, api_keys=str(keys), speech="both") as running:
        for path in ("/v1/audio/transcriptions", "/v1/audio/speech"):
            status, _, body = await running.get(path, method="POST", Authorization=f"Bearer {key}")
            assert (status, "it lacks the scope `chat`" in body) == (403, True), body


async def test_a_key_asks_its_models_alone(keys: Path, tmp_path: Path) -> None:
    small = ScriptedEngine(reply="small")
    models = ServedModels(
        [
            ServedModel(name="big", engine=ScriptedEngine(reply="big")),
            ServedModel(name="small", engine=small, aliases=("s",), fallbacks=("big",)),
        ]
    )
    key = add_key(keys, "ann", policy=parse_policy(["models=s"]))
    async with (
        serving(tmp_path, cast("ScriptedEngine", models), api_keys=str(keys)) as running,
        running.socket({"token": key}) as socket,
    ):
        assert (socket.ready["model"], [one["name"] for one in socket.ready["models"]]) == (
            "small",
            ["small"],
        )
        assert "fallbacks" not in socket.ready["models"][0]
        assert (await send_and_wait(socket, "Hello?"))[-1]["model"] == "small"
        unknown = await socket.ask(type="send", client_msg_id="a", content="Hello?", params={"model": "huge"})
        assert (unknown["code"], unknown["message"]) == (
            "model_not_found",
            'This server has "small", and no model "huge".',
        )
        refused = await socket.ask(type="send", client_msg_id="b", content="Hello?", params={"model": "big"})
        assert (refused["code"], refused["message"]) == (
            "forbidden",
            "This key may not use the model; it may use s.",
        )
        answer = await running.request("POST", "/v1/chat/completions", key, json=CHAT | {"model": "big"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert (await running.request("GET", "/v1/models/big", key)).status_code == 403
        reported = (await running.request("GET", "/v1/models", key)).json()["data"]
        assert [one["id"] for one in reported] == ["small", "s"]
        answer = await running.request("POST", "/v1/chat/completions", key, json=CHAT | {"model": "s"})
        assert answer.status_code == 200
        assert len(small.requests) == 2


def change(keys: Path, name: str, words: str) -> None:
    """An operator edits a key's terms in the file; `:app` is another kind."""
    lines = []
    for line in keys.read_text().splitlines():
        key, kind = line.split()[0].rsplit(":", 1)
        changed = f"{key}{words}" if words.startswith(":") else f"{key}:{kind} {words}"
        lines.append(changed if line.startswith(f"{name}:") else line)
    keys.write_text("\n".join(lines))


async def test_a_key_has_limits_of_its_own_which_change_while_it_is_open(keys: Path, tmp_path: Path) -> None:
    key = add_key(keys, "ann", policy=parse_policy(["messages_per_day=2", "messages_per_minute=50"]))
    free = add_key(keys, "bob")
    async with (
        serving(tmp_path, api_keys=str(keys), key_messages_per_minute=100) as running,
        running.socket({"token": key}) as socket,
        running.socket({"token": free}) as other,
    ):
        assert socket.ready["limits"]["messages_per_minute"] == 50
        assert other.ready["limits"]["messages_per_minute"] == 100
        for number in range(2):
            await send_and_wait(socket, f"{number}")
        refused = await socket.ask(type="send", client_msg_id="m", content="And now?")
        assert (refused["code"], "key_messages_per_day" in refused["message"]) == ("rate_limited", True)
        answer = await running.request(
            "POST", "/v1/chat/completions", key, json=CHAT | {"model": "midstream-demo"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        await send_and_wait(other, "I am free.")
        change(keys, "ann", "messages_per_day=9")
        os.kill(os.getpid(), signal.SIGHUP)
        await until_accepted(socket)
        change(keys, "ann", "tokens_per_day=1")
        os.kill(os.getpid(), signal.SIGHUP)
        await refused_by(socket, "key_tokens_per_day")
        assert (await socket.ask(type="ping"))["type"] == "pong"  # a limit that changes ends no connection


async def until_accepted(socket: Socket) -> None:
    """Send until a message is accepted: the signal is handled in a later turn of the loop."""
    async with asyncio.timeout(WAIT_S):
        for number in count():
            answer = await socket.ask(type="send", client_msg_id=f"again-{number}", content="Hello?")
            if answer["type"] != "error":
                await socket.next("done")
                return
            await asyncio.sleep(0.02)


async def refused_by(socket: Socket, limit: str) -> None:
    """Send until a limit refuses a message."""
    for number in range(20):
        answer = await socket.ask(type="send", client_msg_id=f"{limit}-{number}", content="Hello?")
        if answer.get("code") == "rate_limited":
            assert limit in answer["message"]
            return
        await socket.next("done")
    raise AssertionError(answer)


@pytest.mark.parametrize("words", ["scopes=read", "models=other", "", ":app"])
async def test_a_key_that_may_do_other_things_ends_its_connections(
    words: str, keys: Path, tmp_path: Path
) -> None:
    key = add_key(keys, "ann", policy=parse_policy(["scopes=chat|read"]))
    async with (
        serving(tmp_path, api_keys=str(keys)) as running,
        running.socket({"client_id": "a", "token": key}) as socket,
    ):
        change(keys, "ann", words)
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await socket.closed())[0] == 4401
        async with running.socket({"client_id": "a", "token": key}):
            pass


# ---- limits of everybody


@pytest.mark.parametrize("notice", ["a signal", "time"])
async def test_limits_change_while_the_service_runs(
    notice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHECK_S", 0.05 if notice == "time" else 3600)
    file = tmp_path / "limits.toml"
    file.write_text("[limits]\nmessages_per_minute = 1")
    async with (
        serving(tmp_path, config=str(file)) as running,
        running.socket() as socket,
    ):
        assert socket.ready["limits"]["messages_per_minute"] == 1
        await send_and_wait(socket, "One.")
        await refused_by(socket, "messages_per_minute")
        file.write_text("[limits]\nmessage_rate = 900.0")  # what it does not name has its default
        if notice == "a signal":
            os.kill(os.getpid(), signal.SIGHUP)
        await until_accepted(socket)
        async with running.socket() as other:
            assert other.ready["limits"]["messages_per_minute"] is None


async def test_a_file_of_limits_that_became_unusable_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[limits]\nmessages_per_minute = 1")
    async with serving(tmp_path, config=str(file)) as running, running.socket() as socket:
        digits, nested = "message_rate = " + "1" * 5000, "x = " + "[" * 100_000
        for spoilt in ("messages_per_minute = 0", "messages_a_minute = 5", "= =", digits, nested):
            file.write_text(f"[limits]\n{spoilt}")
            with capture_logs() as logs:
                running.service._config_reload.reload()
            assert "limits not reloaded, previous limits kept" in [line["event"] for line in logs]
        await send_and_wait(socket, "One.")
        await refused_by(socket, "messages_per_minute")


async def test_a_look_at_files_that_fails_ends_no_service(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHECK_S", 0.01)
    failed = asyncio.Event()

    def reload_if_changed() -> None:
        failed.set()
        raise RuntimeError("a disk that nobody thought of")

    async with serving(tmp_path, api_keys=str(keys)) as running:
        with capture_logs() as lines:
            monkeypatch.setattr(running.service._config_reload.access, "reload_if_changed", reload_if_changed)
            await asyncio.wait_for(failed.wait(), timeout=10)
            assert (await running.get("/healthz"))[0] == 200
        assert "config check failed, previous config kept" in [line["event"] for line in lines]
