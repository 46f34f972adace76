"""From the first signal to the last close, and its record in the logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from socket import create_connection

import pytest
from websockets.exceptions import InvalidStatus

from app.server import address, listen
from app.service import SIGNAL_MERGE_S, cancelled_by_signals
from engine.errors import EngineUnavailable
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, Socket, serving

LONG = "word " * 20_000
SHORT = "word " * 30


async def begin(running: InProcessService, socket: Socket, text: str = LONG) -> str:
    """Start a reply, a long one; return its turn's id once text comes."""
    running.engine.script(text)
    await socket.send(type="send", client_msg_id="long", content="Go on.")
    turn_id: str = (await socket.next("accepted"))["turn_id"]
    await socket.next("delta")
    return turn_id


async def test_a_stop_wakes_the_server_which_says_goodbye_to_every_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.server.TICK_S", 3600.0)
    async with serving(tmp_path) as running, running.socket() as socket:
        running.service.stop()
        goaway = await socket.next()
        assert goaway == {"type": "goaway", "drain_ms": 0, "reason": "The server is about to stop."}
        assert await socket.closed() == (1012, "The server is shutting down; reconnect.")
        await running.serving


async def test_running_replies_have_their_time_to_end(tmp_path: Path) -> None:
    engine = ScriptedEngine(pace_s=0.005)
    async with serving(tmp_path, engine, drain_timeout=30.0) as running, running.socket() as socket:
        await begin(running, socket, SHORT)
        running.service.stop()
        await socket.next("goaway")
        await socket.send(type="send", client_msg_id="m2", content="One more?")
        refused = await socket.next("error")
        assert (refused["code"], refused["retryable"]) == ("draining", True)
        status, _, body = await running.get("/readyz")
        assert (status, json.loads(body)["draining"]) == (503, True)
        assert (await socket.next("done"))["reason"] == "stop"
        assert (await socket.closed())[0] == 1012


async def test_while_it_drains_only_busy_connections_stay(tmp_path: Path) -> None:
    """HTTP connections end with their next answer: a load balancer that keeps them then connects to another replica."""
    engine = ScriptedEngine(by_hand=True)
    get = b"GET /%b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with serving(tmp_path, engine, drain_timeout=30.0) as running, running.socket() as busy:
        await busy.send(type="send", client_msg_id="m1", content="Hello?")
        await busy.next("accepted")
        idle_http, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(get % b"healthz")
        assert b"connection: close" not in await idle_http.readuntil(b"\r\n\r\n")
        fresh, fresh_writer = await asyncio.open_connection("127.0.0.1", running.port)
        async with running.socket({"client_id": "idle"}) as idle:
            running.service.stop()
            assert (await idle.next())["type"] == "goaway"
            assert await idle.closed() == (1012, "The server is shutting down; reconnect.")
        await idle_http.read()
        fresh_writer.write(get % b"readyz")
        answer = await fresh.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close" in answer
        for one in (writer, fresh_writer):
            one.close()
        with pytest.raises(InvalidStatus) as refused:
            async with running.socket():
                pass
        assert refused.value.response.status_code == 503
        await busy.send(type="cancel")
        assert (await busy.next("done"))["reason"] == "cancelled"
        assert (await busy.closed())[0] == 1012


async def test_a_replica_among_others_stops_listening(tmp_path: Path, store_url: str) -> None:
    """A load balancer whose connection is refused may send any request to another replica, a POST too."""
    engine = ScriptedEngine(by_hand=True)
    async with (
        serving(tmp_path / "other", redis_url=store_url),
        serving(tmp_path, engine, redis_url=store_url, drain_timeout=30.0) as running,
        running.socket() as busy,
    ):
        await busy.send(type="send", client_msg_id="m1", content="Hello?")
        await busy.next("accepted")
        running.service.stop()
        assert (await running.get("/readyz"))[0] == 503
        await busy.next("goaway")
        with pytest.raises(ConnectionRefusedError):
            await running.get("/healthz")
        await busy.send(type="cancel")
        assert (await busy.next("done"))["reason"] == "cancelled"


async def test_connections_that_the_kernel_has_are_served_before_the_listening_socket_is_closed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as running, AsyncExitStack() as stack:
        await running.get("/healthz")
        made = [stack.enter_context(create_connection(("127.0.0.1", running.port))) for _ in range(20)]
        for one in made:  # the event loop has not accepted any so far
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await running.service._server.stop_listening()
        for one in made:
            assert (await asyncio.to_thread(one.recv, 1 << 16)).startswith(b"HTTP/1.1 200 ")


async def test_a_stop_waits_for_no_title(tmp_path: Path) -> None:
    """Sixty-four may wait, and each may take a minute."""
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, titles="model") as running, running.socket() as socket:
        await socket.send(type="send", client_msg_id="m1", content="Hello?")
        ended = asyncio.create_task(socket.next("done"))
        while not ended.done():
            engine.step()
            await running.get("/healthz")
        while len(engine.requests) < 2:  # the title's
            await running.get("/healthz")
        running.service.stop()
        async with asyncio.timeout(30):
            await running.serving


async def test_replies_that_outlast_the_drain_are_ended_as_interrupted(tmp_path: Path) -> None:
    engine = ScriptedEngine(pace_s=0.005)
    async with serving(tmp_path, engine, drain_timeout=0.05) as running, running.socket() as socket:
        await begin(running, socket)
        running.service.stop()
        done = await socket.next("done")
        assert (done["reason"], done["cancel"]["cause"]) == ("interrupted", "drain")
        assert (await socket.closed())[0] == 1012


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_hurries(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.service.SIGNAL_MERGE_S", 0.0)
    engine = ScriptedEngine(pace_s=0.005)
    async with serving(tmp_path, engine, drain_timeout=600.0) as running, running.socket() as socket:
        await begin(running, socket)
        os.kill(os.getpid(), number)
        assert (await socket.next("goaway"))["drain_ms"] == 600_000
        await socket.next("delta")  # the reply goes on
        os.kill(os.getpid(), number)
        assert (await socket.next("done"))["reason"] == "interrupted"
        await running.serving


async def test_a_signal_for_the_process_and_for_its_group_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.service.SIGNAL_MERGE_S", 600.0)  # a busy machine takes its time between them
    engine = ScriptedEngine(pace_s=0.005)
    async with serving(tmp_path, engine, drain_timeout=30.0) as running, running.socket() as socket:
        await begin(running, socket, SHORT)
        os.kill(os.getpid(), signal.SIGTERM)
        await socket.next("goaway")
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await socket.next("done"))["reason"] == "stop"
        await running.serving


async def test_an_engine_that_never_comes_up_stops_the_service_with_its_reason(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.fail("The engine crashed too often.")
    with pytest.raises(ExceptionGroup) as failed:
        async with serving(tmp_path, engine) as running:
            await running.serving
    assert failed.group_contains(EngineUnavailable, match="crashed too often")


async def test_a_stop_while_the_model_loads_is_quick(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.die(revive=False)
    async with serving(tmp_path, engine) as running:
        running.service.stop()
        async with asyncio.timeout(30):
            await running.serving


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "[::1]"),
        ("::", "[::1]"),
        ("localhost", "127.0.0.1"),
    ],
)
def test_the_address_shown_can_be_opened_here(host: str, shown: str) -> None:
    with listen(host, 0) as listener:
        assert address(listener) == f"http://{shown}:{listener.getsockname()[1]}"


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_both_kinds(client: str) -> None:
    with listen("::", 0) as listener, socket.create_connection((client, listener.getsockname()[1])):
        pass


async def test_a_later_signal_ends_a_start_that_lost_the_first_one() -> None:
    lost = asyncio.Event()

    async def start() -> None:
        with cancelled_by_signals():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # as wait_for does before Python 3.12
                lost.set()
            await asyncio.Event().wait()

    starting = asyncio.create_task(start())
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGTERM)
    await lost.wait()
    await asyncio.sleep(SIGNAL_MERGE_S)
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await starting
