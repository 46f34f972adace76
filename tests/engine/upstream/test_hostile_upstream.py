"""What an upstream sends outside of a reply is bounded in bytes and time, and its words stay with the operator."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.api import EngineState
from engine.errors import EngineBusy
from engine.upstream.engine import UpstreamEngine
from engine.upstream.options import Features, Timeouts
from tests.engine.replies import HELLO, outputs_of, text_of
from tests.engine.upstream.test_upstream import SHED, end_of, failing, make_request, options_for, serving
from tests.engine.upstream.test_upstream_lifecycle import until
from tests.engine.upstream_server import Answer, UpstreamServer

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


async def test_a_chunk_that_is_too_deep_is_no_chunk(server: UpstreamServer) -> None:
    async with serving(server, retries=0) as engine:
        server.answers = [Answer(fail_after=0, raw=f"data: {DEEP.decode()}\n\n")]
        _, error = await failing(engine.generate(make_request()))
    assert "not a chunk of a reply" in str(error)


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


async def test_one_request_tries_after_a_rest(server: UpstreamServer) -> None:
    """A server that asks for an hour is well again sooner; a server that is not is not asked by everybody."""
    async with serving(server, retries=0) as engine:
        server.answers = [Answer(status=429, error=SHED, headers={"Retry-After": "0.2"})]
        await failing(engine.generate(make_request()))
        with pytest.raises(EngineBusy):
            await engine.count_tokens(HELLO)
        await asyncio.sleep(0.3)
        held = Answer(hold_after=0)
        server.answers = [held]
        trial = engine.generate(make_request("trial"))
        await server.held.wait()
        _, other = await failing(engine.generate(make_request("other")))
        assert isinstance(other, EngineBusy)
        held.go.set()
        assert text_of(await outputs_of(trial)) == "Hello there."
        assert text_of(await outputs_of(engine.generate(make_request("next")))) == "Hello there."
