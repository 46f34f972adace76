"""Upstreams that come late, go away and come back; requests wait for them, within limits."""

from __future__ import annotations

import asyncio
import math
import ssl
from pathlib import Path

import pytest
import trustme
from starlette.responses import JSONResponse, PlainTextResponse

from engine.api import EngineState
from engine.errors import EngineLost, EngineUnavailable
from engine.messages import FinishReason, Retried
from engine.upstream.engine import UpstreamEngine
from engine.upstream.monitor import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, backoff_s
from engine.upstream.options import Timeouts
from tests.engine.replies import HELLO, outputs_of, text_of
from tests.engine.upstream.test_upstream import end_of, failing, make_request, options_for, serving
from tests.engine.upstream_server import Answer, UpstreamServer, upstream_server
from tests.sessions.chat_driver import eventually

SOON = Timeouts(connect_s=2, health_s=0.05, unavailable_s=5)


async def until(engine: UpstreamEngine, state: EngineState) -> None:
    reached = asyncio.Event()
    engine.monitor.life._on_change = lambda: reached.set() if engine.status.state is state else None
    async with asyncio.timeout(30):
        if engine.status.state is not state:
            await reached.wait()


async def test_what_was_asked_before_an_upstream_answers_is_served_then(server: UpstreamServer) -> None:
    server.models = JSONResponse({}, 503)
    engine = UpstreamEngine(options_for(server.url, timeouts=SOON))
    early = engine.generate(make_request())
    async with engine.running():
        with pytest.raises(EngineUnavailable, match="not ready"):
            await engine.ready(0.2)
        assert engine.status.message == "The engine up answers 503 to GET models."
        assert engine.statistics().queued == 1
        server.models = JSONResponse({"data": [{"id": "another"}]})
        await eventually(lambda: "does not serve 'model'" in (engine.status.message or ""))
        assert engine.status.state is EngineState.LOADING
        server.models = PlainTextResponse("fine")
        assert text_of(await outputs_of(early)) == "Hello there."
        assert engine.status.state is EngineState.READY
        server.models = JSONResponse({}, 500)
        await until(engine, EngineState.RESTARTING)
        server.models = JSONResponse({}, 429)
        await until(engine, EngineState.READY)
        assert engine.status.restarts == 1, "one look that fails is not the end"


async def test_an_upstream_that_is_gone_is_waited_for_and_comes_back() -> None:
    async with upstream_server() as server:
        port = int(server.url.split(":")[2].split("/")[0])
        engine = UpstreamEngine(options_for(server.url, timeouts=Timeouts(health_s=100, unavailable_s=60)))
        running = engine.running()
        await running.__aenter__()
        await engine.ready(5)
    waiting = engine.generate(make_request())
    assert await anext(waiting) == Retried("r", elsewhere=False)
    assert engine.status.state is EngineState.RESTARTING
    async with upstream_server(port):
        assert text_of(await outputs_of(waiting)) == "Hello there."
    await running.__aexit__(None, None, None)


async def test_patience_with_an_upstream_that_is_gone_ends() -> None:
    async with upstream_server() as server:
        timeouts = Timeouts(connect_s=2, health_s=0.05, unavailable_s=0.3)
        engine = UpstreamEngine(options_for(server.url, timeouts=timeouts))
        running = engine.running()
        await running.__aenter__()
        await engine.ready(5)
    await until(engine, EngineState.RESTARTING)
    _, error = await failing(engine.generate(make_request()))
    assert isinstance(error, EngineUnavailable)
    with pytest.raises(EngineUnavailable):
        await engine.ready()
    cancelled = engine.generate(make_request("cancelled"))
    cancelled.cancel()
    end = await end_of(cancelled)
    assert (end.reason, end.steps_after) == (FinishReason.CANCELLED, 0)
    await running.__aexit__(None, None, None)


async def test_what_is_open_when_the_engine_stops_is_lost(server: UpstreamServer) -> None:
    server.answers = [Answer(hold_after=1)]
    async with serving(server) as engine:
        stream = engine.generate(make_request())
        await server.held.wait()
    text, error = await failing(stream)
    assert isinstance(error, EngineLost)
    assert text in {"", "Hello"}
    with pytest.raises(EngineUnavailable):
        engine.generate(make_request("late"))
    async with asyncio.timeout(30):
        await server.closed.wait()


def test_pauses_grow_to_a_limit() -> None:
    for attempt, longest in enumerate([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]):
        assert longest / 2 <= backoff_s(attempt) <= longest
    assert LONGEST_PAUSE_S / 2 <= backoff_s(5000) <= LONGEST_PAUSE_S
    assert backoff_s(40, 1.0) <= 1.0


async def test_an_upstream_that_fails_again_and_again_is_left_alone_then_tried(
    server: UpstreamServer,
) -> None:
    """A trial that is cancelled proves nothing."""
    async with serving(server, retries=0) as engine:
        server.answers = [*[Answer(status=500)] * FAILURES, Answer(hold_after=0)]
        for number in range(FAILURES):
            await failing(engine.generate(make_request(f"r{number}")))
        engine.monitor._circuit._until = math.inf
        _, error = await failing(engine.generate(make_request()))
        assert isinstance(error, EngineUnavailable)
        assert (error.retry_after_s or 0) > 0
        with pytest.raises(EngineUnavailable, match="failed too often"):
            await engine.count_tokens(HELLO)
        assert (len(server.bodies), engine.statistics().circuit_open) == (FAILURES, 1)
        engine.monitor._circuit._until = 0.0
        trial = engine.generate(make_request("trial"))
        await server.held.wait()
        _, error = await failing(engine.generate(make_request("beside")))
        assert isinstance(error, EngineUnavailable)
        trial.cancel()
        await server.closed.wait()
        assert engine.statistics().circuit_open == 1
        assert text_of(await outputs_of(engine.generate(make_request("next")))) == "Hello there."
        assert engine.statistics().circuit_open == 0


async def test_what_the_sender_did_wrong_opens_no_circuit(server: UpstreamServer) -> None:
    async with serving(server) as engine:
        server.answers = [Answer(status=400)] * (FAILURES + 1)
        for number in range(FAILURES + 1):
            assert (await end_of(engine.generate(make_request(f"r{number}")))).reason is FinishReason.ERROR
        assert engine.statistics().circuit_open == 0


async def test_what_waits_for_a_connection_can_be_given_to_another_engine(tmp_path: Path) -> None:
    """Nothing of it has arrived anywhere, though its turn has come."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    came, over = asyncio.Event(), asyncio.Event()

    async def shakes_hands_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if came.is_set():
            requested.set()
            await over.wait()
        else:
            came.set()
            await writer.start_tls(context)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    requested = asyncio.Event()
    async with await asyncio.start_server(shakes_hands_once, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        options = options_for(url, ca_file=str(tmp_path / "ca.pem"), timeouts=Timeouts(health_s=100))
        async with UpstreamEngine(options).running() as engine:
            await engine.ready(5)
            engine.generate(make_request())
            await requested.wait()
            assert engine.statistics().running == 1
            assert [request.request_id for request, _ in engine.give_up_waiting()] == ["r"]
        over.set()
