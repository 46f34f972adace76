"""An upstream keeps the endpoint's promises, whatever its server does. Real HTTP, a server of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import JSONResponse

from engine.api import Engine, Streamer
from engine.errors import EngineBusy, EngineError, EngineLost, EngineUnavailable, PromptRejected
from engine.messages import (
    Chunk,
    ErrorCode,
    Finished,
    FinishReason,
    Message,
    Output,
    Params,
    Queued,
    ReplySpec,
    Request,
    Retried,
    Started,
    Tool,
    Trace,
)
from engine.upstream.engine import UpstreamEngine
from engine.upstream.options import Features, Timeouts, UpstreamOptions
from tests.engine.replies import HELLO, outputs_of, reply_of, text_of
from tests.engine.upstream_server import Answer, UpstreamServer

FAMILY = "👩‍👩‍👧"


@pytest.fixture
async def engine(server: UpstreamServer) -> AsyncIterator[UpstreamEngine]:
    async with serving(server) as upstream:
        yield upstream


@asynccontextmanager
async def serving(
    server: UpstreamServer, *, key: str | None = None, **options: Any
) -> AsyncIterator[UpstreamEngine]:
    """An engine over the server, ready."""
    async with UpstreamEngine(options_for(server.url, **options), key=key).running() as upstream:
        await upstream.ready(10)
        yield upstream


def options_for(url: str, **options: Any) -> UpstreamOptions:
    defaults: dict[str, Any] = {"name": "up", "url": url, "model": "model", "context_tokens": 4096}
    return UpstreamOptions(**defaults | options)


def make_request(request_id: str = "r", **params: Any) -> Request:
    return Request(request_id, HELLO, Params(**params))


async def end_of(stream: Streamer) -> Finished:
    return (await reply_of(stream))[1]


async def text_until(stream: Streamer, end: str) -> str:
    text = ""
    while not text.endswith(end):
        output = await anext(stream)
        text += output.text if isinstance(output, Chunk) else ""
    return text


async def failing(stream: Streamer) -> tuple[str, EngineError]:
    """The text that came before an error, and the error."""
    outputs: list[Output] = []
    try:
        while True:
            outputs.append(await anext(stream))
    except EngineError as error:
        return text_of(outputs), error


async def test_a_reply_comes_with_the_upstreams_totals(engine: UpstreamEngine) -> None:
    interface: Engine = engine
    outputs = await outputs_of(engine.generate(make_request()))
    assert outputs[0] == Started("r", 8)
    assert text_of(outputs) == "Hello there."
    assert outputs[-1] == Finished("r", FinishReason.STOP, 11, 5, 4)
    assert interface.statistics().generated_tokens == 4
    assert interface.statistics().running == 0
    assert interface.parts == (engine,)
    assert 1 <= interface.statistics().deliveries <= 3
    assert interface.statistics().delivery_seconds > 0
    assert await engine.count_tokens(HELLO) == 8, "estimated"
    surrogate = (Message("user", "\ud800"),)
    for refused in ((), surrogate):
        with pytest.raises(PromptRejected):
            await engine.count_tokens(refused)
    assert (await end_of(engine.generate(Request("r", surrogate)))).reason is FinishReason.ERROR


async def test_a_character_is_shown_whole(engine: UpstreamEngine, server: UpstreamServer) -> None:
    held = Answer(("a", *FAMILY, "b"), hold_after=4)
    server.answers = [held]
    stream = engine.generate(make_request())
    shown = await text_until(stream, "a")
    await server.held.wait()
    assert shown == "a", "what may still become a family waits"
    held.go.set()
    assert text_of(await outputs_of(stream)) == f"{FAMILY}b"


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_cancel_closes_the_stream_and_nothing_comes_behind_it(
    engine: UpstreamEngine, server: UpstreamServer, *, deaf: bool
) -> None:
    """Whether the server hears of it, or goes on."""
    server.answers = [Answer(("word ",), endless=True, deaf=deaf)]
    stream = engine.generate(make_request(max_new_tokens=4000))
    while not isinstance(await anext(stream), Chunk):
        pass
    stream.cancel()
    rest = await outputs_of(stream)
    assert isinstance(rest[-1], Finished)
    assert (rest[-1].reason, rest[-1].steps_after) == (FinishReason.CANCELLED, None)
    assert sum(isinstance(output, Chunk) for output in rest) <= 1, "what had come before the cancel"
    async with asyncio.timeout(30):
        await (server.spoke_to_nobody if deaf else server.closed).wait()
    assert await outputs_of(stream) == []
    assert (engine.open_requests, engine.statistics().cancels) == (0, 1)
    assert text_of(await outputs_of(engine.generate(make_request("next")))) == "Hello there."


SHED = {"error": {"message": "busy", "code": 429}}
OVERFLOW = {
    "error": {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"}
}


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, OVERFLOW, ErrorCode.CONTEXT_OVERFLOW),
        (400, {"error": {"message": "no", "code": "context_length_exceeded"}}, ErrorCode.CONTEXT_OVERFLOW),
        (400, {"error": {"type": "exceed_context_size_error", "message": "n"}}, ErrorCode.CONTEXT_OVERFLOW),
        (422, {"detail": "top_p must be at most 1"}, ErrorCode.BAD_PARAMS),
        (413, None, ErrorCode.BAD_PARAMS),
    ],
)
async def test_what_is_the_requests_fault_ends_it_with_the_code(
    engine: UpstreamEngine, server: UpstreamServer, status: int, error: object, code: ErrorCode
) -> None:
    server.answers = [Answer(status=status, error=error)]
    end = await end_of(engine.generate(make_request()))
    assert (end.reason, end.error_code) == (FinishReason.ERROR, code)
    assert end.error


@pytest.mark.parametrize(
    ("answer", "loss"),
    [
        (Answer(status=429, error=SHED, headers={"Retry-After": "0"}), EngineBusy),
        (Answer(status=503, error="no capacity"), EngineBusy),
        (Answer(status=401, error={"error": {"message": "bad key"}}), EngineUnavailable),
        (Answer(status=404, error=None), EngineUnavailable),
        (Answer(status=307, headers={"Location": "/elsewhere"}), EngineUnavailable),
        (Answer(fail_after=0, error=SHED["error"]), EngineBusy),
        (Answer(status=500, error={"error": "oops"}), EngineUnavailable),
        (Answer(cut_after=0), EngineUnavailable),
        (Answer(end_after=0), EngineUnavailable),
        (Answer(fail_after=0, error={"message": "CUDA error"}), EngineUnavailable),
    ],
    ids=repr,
)
async def test_what_fails_before_the_first_token_leaves_no_text(
    server: UpstreamServer, answer: Answer, loss: type[EngineError]
) -> None:
    async with serving(server, retries=0) as engine:
        server.answers = [answer]
        text, error = await failing(engine.generate(make_request()))
        assert (text, type(error)) == ("", loss)
        assert (engine.open_requests, len(server.bodies)) == (0, 1)
        assert text_of(await outputs_of(engine.generate(make_request("next")))) == "Hello there."
        reported = engine.statistics()
        assert (reported.shed, reported.failures) == ((1, 0) if loss is EngineBusy else (0, 1))


async def test_what_fails_before_the_first_token_is_asked_again(
    engine: UpstreamEngine, server: UpstreamServer
) -> None:
    server.answers = [Answer(status=500), Answer(cut_after=0)]
    outputs = await outputs_of(engine.generate(make_request()))
    assert [output for output in outputs if isinstance(output, Retried)] == [
        Retried("r", elsewhere=False)
    ] * 2
    behind = outputs[max(number for number, output in enumerate(outputs) if isinstance(output, Retried)) + 1]
    assert behind == Started("r", 8), "what the failed attempt had told is told anew"
    assert text_of(outputs) == "Hello there."
    assert (engine.statistics().retries, engine.statistics().failures) == (2, 2)


async def test_a_silent_upstream_is_left_at_once_by_one_cancel(
    engine: UpstreamEngine, server: UpstreamServer
) -> None:
    server.answers = [Answer(hold_after=0)]
    stream = engine.generate(make_request())
    await server.held.wait()
    with pytest.raises(ValueError, match="still open"):
        engine.generate(make_request())
    stream.cancel()
    stream.cancel()
    assert (await end_of(stream)).reason is FinishReason.CANCELLED
    async with asyncio.timeout(30):
        await server.closed.wait()
    assert server.made == 0


async def test_a_cancel_between_two_attempts_ends_it(engine: UpstreamEngine, server: UpstreamServer) -> None:
    server.answers = [Answer(status=500)]
    stream = engine.generate(make_request())
    assert isinstance(await anext(stream), Retried)
    stream.cancel()
    assert (await end_of(stream)).reason is FinishReason.CANCELLED
    assert len(server.bodies) == 1


async def test_an_upstream_that_asks_for_a_rest_gets_it_though_another_answer_names_none(
    engine: UpstreamEngine, server: UpstreamServer
) -> None:
    held = Answer(hold_after=0, fail_after=0, error=SHED["error"])
    server.answers = [held, Answer(status=429, error=SHED, headers={"Retry-After": "100"})]
    before = engine.generate(make_request("before"))
    await server.held.wait()
    _, error = await failing(engine.generate(make_request()))
    assert isinstance(error, EngineBusy)
    assert error.retry_after_s == 60
    held.go.set()
    await failing(before)
    with pytest.raises(EngineBusy, match="no more requests") as refusal:
        await engine.count_tokens(HELLO)
    assert 50 < (refusal.value.retry_after_s or 0) <= 60


@pytest.mark.parametrize(
    ("answer", "most", "reason"),
    [
        (Answer(reason="length"), None, FinishReason.LENGTH),
        (Answer(reason="length", totals=False, mark=False), None, FinishReason.LENGTH),
        (Answer(reason=None), None, FinishReason.STOP),
        (Answer(reason="content_filter"), None, FinishReason.ERROR),
        (Answer(("word ",), endless=True), 5, FinishReason.LENGTH),
    ],
    ids=repr,
)
async def test_a_reply_ends_for_the_upstreams_reason_or_where_it_was_asked_to(
    engine: UpstreamEngine, server: UpstreamServer, answer: Answer, most: int | None, reason: FinishReason
) -> None:
    server.answers = [answer]
    assert (await end_of(engine.generate(make_request(max_new_tokens=most)))).reason is reason
    if answer.endless:
        async with asyncio.timeout(30):
            await server.closed.wait()


@pytest.mark.parametrize(
    ("hold_after", "text", "loss"), [(0, "", EngineUnavailable), (2, "Hello there", EngineLost)]
)
async def test_an_upstream_that_stalls_is_left(
    server: UpstreamServer, hold_after: int, text: str, loss: type[EngineError]
) -> None:
    server.answers = [Answer(hold_after=hold_after)]
    times = Timeouts(first_token_s=0.3, between_tokens_s=0.3)
    async with serving(server, retries=0, timeouts=times) as engine:
        came, error = await failing(engine.generate(make_request()))
        assert (came, type(error)) == (text, loss)
        async with asyncio.timeout(30):
            await server.closed.wait()


async def test_a_reply_that_takes_longer_than_it_may_ends_with_what_there_is(
    engine: UpstreamEngine, server: UpstreamServer
) -> None:
    server.answers = [Answer(hold_after=1)]
    outputs = await outputs_of(engine.generate(make_request(max_time_s=0.3)))
    assert text_of(outputs) == "Hello"
    assert isinstance(outputs[-1], Finished)
    assert outputs[-1].reason is FinishReason.TIMEOUT


@pytest.mark.parametrize(
    "raw",
    [
        "data: <html>\n\n",
        "data: [1]\n\n",
        'data: {"choices": 7}\n\n',
        f"data: {'[' * 100_000}\n\n",
        "event: error\ndata: CUDA error\n\n",
        'event: error\ndata: {"message": "CUDA error"}\n\n',
        f"data: {'x' * (1 << 20)}\n\n",
    ],
    ids=lambda raw: raw[:40],
)
async def test_what_is_no_chunk_ends_the_reply(
    engine: UpstreamEngine, server: UpstreamServer, raw: str
) -> None:
    server.answers = [Answer(fail_after=1, raw=raw)]
    text, error = await failing(engine.generate(make_request()))
    assert (text, type(error)) == ("Hello", EngineLost)


async def test_the_key_and_the_request_arrive(server: UpstreamServer) -> None:
    features = Features(affinity_header="x-session-id")
    trace = Trace("req-7", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    async with serving(server, key="secret", features=features) as engine:
        requested = Request("r", HELLO, conversation="c", cache_salt="s", trace=trace)
        await outputs_of(engine.generate(requested))
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert server.headers[0]["x-request-id"] == trace.request_id
    assert server.headers[0]["traceparent"] == trace.traceparent
    assert len(server.headers[0]["x-session-id"]) == 64
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello there"}]


async def test_prompts_are_counted_upstream_where_it_can(server: UpstreamServer) -> None:
    async with serving(server, features=Features(tokenize="../tokenize")) as engine:
        assert await engine.count_tokens(HELLO) == 42
        assert server.bodies[0]["add_generation_prompt"] is True
        spec = ReplySpec(tools=(Tool("look"),), template={"a": 1})
        assert await engine.count_tokens(HELLO, spec=spec) == 42
        assert server.bodies[1]["tools"][0]["function"]["name"] == "look"
        server.counted = JSONResponse({"error": {"message": "roles must alternate"}}, 400)
        with pytest.raises(PromptRejected, match=r"refuses the request \(400\)"):
            await engine.count_tokens(HELLO)
        server.counted = JSONResponse(OVERFLOW, 400)
        assert await engine.count_tokens(HELLO) == 4096


async def test_as_many_are_asked_at_once_as_it_runs_well_and_the_others_take_turns(
    server: UpstreamServer,
) -> None:
    held = Answer(hold_after=0)
    server.answers = [held]
    async with serving(server, max_requests=1) as engine:
        running = engine.generate(Request("ann-1", HELLO, client="ann"))
        await server.held.wait()
        second = engine.generate(Request("ann-2", HELLO, client="ann"))
        other = engine.generate(Request("bob-1", HELLO, client="bob"))
        left = engine.generate(Request("bob-2", HELLO, client="bob"))
        assert [await anext(stream) for stream in (second, other, left)] == [
            Queued("ann-2", 2),
            Queued("bob-1", 1),
            Queued("bob-2", 3),
        ]
        assert (engine.statistics().running, engine.statistics().queued) == (1, 3)
        left.cancel()
        assert (await end_of(left)).steps_after == 0
        held.go.set()
        for stream in (running, other, second):
            assert (await end_of(stream)).reason is FinishReason.STOP
    assert len(server.bodies) == 3
