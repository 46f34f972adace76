"""Upstreams that come late, go away, come back or are hostile: waits, bytes and words of theirs have limits."""

from __future__ import annotations

import asyncio
import gzip
import math
import ssl
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import trustme
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api import EngineState
from engine.errors import EngineLost, EngineUnavailable
from engine.messages import FinishReason, Retried
from engine.upstream.engine import UpstreamEngine
from engine.upstream.monitor import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, backoff_s
from engine.upstream.options import Features, Timeouts
from tests.engine.replies import HELLO, outputs_of, text_of
from tests.engine.upstream.test_upstream import SHED, end_of, failing, make_request, options_for, serving
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
        engine.monitor.circuit._until = math.inf
        _, error = await failing(engine.generate(make_request()))
        assert isinstance(error, EngineUnavailable)
        assert (error.retry_after_s or 0) > 0
        with pytest.raises(EngineUnavailable, match="failed too often"):
            await engine.count_tokens(HELLO)
        assert (len(server.bodies), engine.statistics().circuit_open) == (FAILURES, 1)
        engine.monitor.circuit._until = 0.0
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


async def test_an_upstream_is_trusted_by_the_authority_that_the_operator_names(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        options = options_for(url, ca_file=str(tmp_path / "ca.pem"))
        async with UpstreamEngine(options).running() as engine:
            assert await engine.ready(5)


MIB = 1024 * 1024
HURRIED = Timeouts(connect_s=0.5, health_s=0.05, unavailable_s=5)


class Flood(StreamingResponse):
    """An answer without an end, as often as it is asked for."""

    def __init__(self, part: bytes, pause_s: float = 0.0) -> None:
        super().__init__((), media_type="application/json")
        self.sent = 0
        self._part = part
        self._pause_s = pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.body_iterator = self._parts()
        await super().__call__(scope, receive, send)

    async def _parts(self) -> AsyncIterator[bytes]:
        while self.sent < 512 * MIB:
            yield self._part
            self.sent += len(self._part)
            await asyncio.sleep(self._pause_s)


@pytest.mark.parametrize(
    "flood", [Flood(b" " * 65_536), Flood(b" ", pause_s=0.05)], ids=["endless", "trickled"]
)
async def test_an_upstream_whose_list_of_models_has_no_end_does_not_serve(
    server: UpstreamServer, flood: Flood
) -> None:
    options = options_for(server.url, timeouts=HURRIED)
    async with UpstreamEngine(options).running() as engine:
        await engine.ready(5)
        server.models = flood
        await until(engine, EngineState.RESTARTING)
    assert flood.sent < 32 * MIB


DEEP = b'{"x": ' + b"[" * 100_000
MALFORMED = {
    "deep": DEEP,
    "no UTF-8": b'{"data": [{"id": "\xff"}]}',
    "long code": b'{"error": {"message": "no", "code": "' + b"9" * 5_000 + b'"}}',
    "nested errors": b'{"error": ' * 900 + b"1" + b"}" * 900,
}


COUNTS: dict[str, Callable[[], Response]] = {
    **{f"{count!r}": partial(JSONResponse, {"count": count}) for count in (-1, 10**18, "42", 1.5, None)},
    "endless": lambda: Flood(b" " * 65_536),
    "trickled": lambda: Flood(b" ", pause_s=0.05),
    # identity was asked for; a megabyte of gzip can be a gigabyte of blanks
    "compressed": lambda: Response(gzip.compress(b'{"count": 42}'), headers={"Content-Encoding": "gzip"}),
    "text": lambda: PlainTextResponse("no"),
    "busy": lambda: JSONResponse(SHED, 429),
    "missing": lambda: JSONResponse({}, 404),
    **{f"{name}, {status}": partial(Response, body, status) for name, body in MALFORMED.items() for status in (200, 500)},
}  # fmt: skip


async def test_a_count_that_has_no_end_or_can_not_be_read_or_true_is_estimated(
    server: UpstreamServer,
) -> None:
    async with serving(server, timeouts=HURRIED, features=Features(tokenize="../tokenize")) as engine:
        for case, respond in COUNTS.items():
            server.counted = counted = respond()
            async with asyncio.timeout(30):
                assert await engine.count_tokens(HELLO) == 8, case
            assert getattr(counted, "sent", 0) < 32 * MIB, "what the buffers of the kernel take"


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_an_upstream_whose_list_of_models_can_not_be_read_serves(
    server: UpstreamServer, body: bytes
) -> None:
    """A decoder has an error of its own for each of these; one in a check of the health ended the engine."""
    async with serving(server, timeouts=HURRIED) as engine:
        server.models = Response(body)
        looks = server.looks
        while server.looks < looks + 2:
            assert text_of(await outputs_of(engine.generate(make_request()))) == "Hello there."


async def test_nobody_is_shown_the_words_of_an_upstreams_error(
    server: UpstreamServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(server, features=Features(tokenize="../tokenize")) as engine:
        error = {"message": "key sk-secret at 10.0.0.7", "type": "BadRequestError", "code": "no_tools"}
        server.answers = [Answer(status=400, error={"error": error})]
        end = await end_of(engine.generate(make_request()))
        assert end.error is not None
        assert "(400)" in end.error
        assert "secret" not in end.error
        assert "no_tools" not in end.error
    assert "(400)" in caplog.text
    assert "BadRequestError no_tools" in caplog.text  # so that the operator can find the cause
    assert "secret" not in caplog.text
