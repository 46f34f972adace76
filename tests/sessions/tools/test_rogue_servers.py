"""MCP servers that hang, lie or flood. Each is bounded, its callers are told why, and nobody else notices."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
import structlog
from starlette.types import Send

from sessions.limits.bounds import Rate
from sessions.limits.rates import TokenBucket
from sessions.tools import mcp_server
from sessions.tools.mcp_server import EVENT_COSTS, GuardedBody
from sessions.tools.tool_registry import ToolFailed, ToolLost, ToolRegistry
from tests.sessions.chat_driver import eventually
from tests.sessions.tools.mcp_servers import (
    FORM,
    TEMPO,
    Answer,
    Rogue,
    Shop,
    box_at,
    event,
    listening,
    options_of,
    part,
    progress_of,
    start,
    text_result,
    tool_of,
)
from tests.sessions.tools.tool_calls import Watcher, call_of

LINES = list[Any]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server is granted after the end of a call is short here."""
    monkeypatch.setattr(mcp_server, "GRACE_S", 0.1)
    monkeypatch.setattr(mcp_server, "ANSWER_S", 1.0)


@asynccontextmanager
async def calling(*rogues: Rogue, **more: Any) -> AsyncIterator[ToolRegistry]:
    """A box with rogues, whose tools have the prefixes `r_`, `r1_` and so on, and a shop as it should be."""
    shop = Shop("modern")
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(listening(rogue)) for rogue in rogues]
        servers = [
            options_of(url, name=f"rogue{number or ''}", prefix=f"r{number or ''}_", **{"call_s": 5.0} | more)
            for number, url in enumerate(urls)
        ]
        servers.append(options_of(await stack.enter_async_context(shop.served())))
        yield await stack.enter_async_context(box_at(*servers))


async def assert_others_unaffected(box: ToolRegistry) -> None:
    assert await box.run("order", {"item": "tea"}, call_of("bob")) == "tea is ordered"


def never() -> Awaitable[Any]:
    return asyncio.Event().wait()


async def hang(message: dict[str, Any]) -> Any:
    return await never()


def reasons(lines: LINES) -> list[str]:
    """Why servers were given up, as the log has it."""
    return [line["why"] for line in lines if line["event"] == "tool server away"]


async def test_servers_that_hang_at_the_start_are_waited_for_together_and_only_as_long_as_is_set() -> None:
    hanging = [Rogue(**{method: hang}) for method in ("initialize", "tools_list") * 2]
    clock = asyncio.get_running_loop()
    started = clock.time()
    with structlog.testing.capture_logs() as lines:
        async with calling(*hanging, connect_s=1.0) as box:
            assert 1.0 <= clock.time() - started < len(hanging)
            assert box.tool("r_work") is None
            await assert_others_unaffected(box)
    assert {*reasons(lines)} == {"it does not answer in time"}


async def test_a_call_that_hangs_is_lost_and_cancelled() -> None:
    rogue = Rogue(tools_call=hang)
    async with calling(rogue, call_s=1.0) as box:
        with pytest.raises(ToolLost, match=r"within 1 s"):
            await box.run("r_work", {}, call_of())
        called = await rogue.message("tools/call")
        cancelled = await rogue.message("notifications/cancelled")
        assert cancelled["params"]["requestId"] == called["id"]
        await assert_others_unaffected(box)


async def test_a_server_that_swallows_cancellations_keeps_nobody_waiting() -> None:
    rogue = Rogue(tools_call=hang, notifications_cancelled=hang)
    async with calling(rogue) as box:
        running = asyncio.create_task(box.run("r_work", {}, call_of()))
        await rogue.message("tools/call")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await assert_others_unaffected(box)


LEFT_OUT: list[tuple[Any, str]] = [
    (
        tool_of("odd", inputSchema={"type": "object", "minProperties": "x"}),
        "its schema is not valid JSON Schema",
    ),
    (
        tool_of("large", inputSchema={"type": "object", "description": "x" * 40_000}),
        "its schema has more than 32768 bytes",
    ),
    (tool_of("wordy", description="x" * 5_000), "its description has more than 4096 bytes"),
    (tool_of("w" * 64), "its name has more than 64 characters, or none"),
    (tool_of("a/b"), "another of the server's tools has its name"),
]


async def test_a_tool_that_can_not_be_offered_is_left_out_with_the_reason() -> None:
    rogue = Rogue()
    rogue.tools = [tool_of("a.b"), *(tool for tool, _ in LEFT_OUT), tool_of("rest")]
    with structlog.testing.capture_logs() as lines:
        async with calling(rogue) as box:
            assert [tool.name for tool in box.offered() if tool.name.startswith("r_")] == ["r_a_b", "r_rest"]
    (line,) = [line for line in lines if line["event"] == "tools of a server" and line["server"] == "rogue"]
    assert line["why"] == {tool["name"]: why for tool, why in LEFT_OUT}


async def test_a_list_that_is_too_long_or_has_no_end_is_given_up() -> None:
    async def page(message: dict[str, Any]) -> Any:
        return {"tools": [], "nextCursor": "on"}

    large, long = Rogue(), Rogue()
    large.tools = [tool_of(f"t{number}") for number in range(2_049)]
    long.tools = [tool_of(f"t{number}") for number in range(150)]
    with structlog.testing.capture_logs() as lines:
        async with calling(large, Rogue(tools_list=page), long, connect_s=60.0) as box:
            await assert_others_unaffected(box)
            assert len([tool for tool in box.offered() if tool.name.startswith("r")]) == 128
    assert "its list has more than 2048 tools or 32 pages" in reasons(lines)


LISTS: list[Any] = [
    [tool_of("work", inputSchema={"type": "string"})],
    "none",
    [3],
    [{"name": 3}],
    [tool_of("work", inputSchema="no schema")],
    [tool_of("work") | {"x": "y" * 2_000_000}],
]


async def test_a_list_that_is_none_offers_nothing() -> None:
    rogues = [Rogue() for _ in LISTS]
    for rogue, tools in zip(rogues, LISTS, strict=True):
        rogue.tools = tools
    async with calling(*rogues) as box:
        names = [tool.name for tool in box.offered()]
    assert "price" in names
    assert not any(name.startswith("r") for name in names)


def streaming(body: Callable[[dict[str, Any], Send], Coroutine[Any, Any, None]], **headers: str) -> Answer:
    """An answer that is sent by hand."""

    async def answer(message: dict[str, Any]) -> Any:
        async def send_it(send: Send) -> None:
            await start(send, **headers)
            await body(message, send)

        return send_it

    return answer


async def endless_line(message: dict[str, Any], send: Send) -> None:
    while True:
        await part(send, b"data: " + b"x" * 65536)


async def endless_lines(message: dict[str, Any], send: Send) -> None:
    while True:
        await part(send, b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" * 1000)


async def endless_comments(message: dict[str, Any], send: Send) -> None:
    while True:
        await part(send, b": xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" * 1000)


async def endless_progress(message: dict[str, Any], send: Send) -> None:
    number = 0
    while True:
        number += 1
        await part(send, progress_of(message, number) * 10)


async def huge_result(message: dict[str, Any], send: Send) -> None:
    await part(send, event({"id": message["id"], "result": text_result("x" * 10_000_000)}), more=False)


async def endless_body(message: dict[str, Any], send: Send) -> None:
    while True:
        await part(send, b"x" * 65536)


@pytest.mark.parametrize(
    ("flood", "kind"),
    [
        *(
            (flood, "text/event-stream")
            for flood in (endless_line, endless_lines, endless_comments, huge_result)
        ),
        (endless_body, "application/json"),
    ],
)
async def test_a_flood_ends_its_call_alone(
    flood: Callable[[dict[str, Any], Send], Coroutine[Any, Any, None]], kind: str
) -> None:
    async with calling(Rogue(tools_call=streaming(flood, kind=kind)), max_response_bytes=65536) as box:
        running = asyncio.create_task(box.run("r_work", {}, call_of()))
        await assert_others_unaffected(box)
        with pytest.raises(ToolFailed, match="more bytes than are read"):
            await running
        await assert_others_unaffected(box)


async def bomb(message: dict[str, Any], send: Send) -> None:
    await part(send, gzip.compress(b"x" * 10_000_000), more=False)


def refusing(status: int) -> Answer:
    async def answer(message: dict[str, Any]) -> Any:
        async def send_it(send: Send) -> None:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await part(send, b"", more=False)

        return send_it

    return answer


def giving(result: Any) -> Answer:
    async def answer(message: dict[str, Any]) -> Any:
        return result

    return answer


ANSWERS: list[tuple[Answer, type[ToolFailed], str]] = [
    (streaming(bomb, kind="application/json", content_encoding="gzip"), ToolLost, "can't be read"),
    (refusing(401), ToolFailed, "HTTP status 401"),
    (refusing(503), ToolLost, "HTTP status 503"),
    (giving({"content": "no list"}), ToolFailed, "did not answer with a tool result"),
    (giving({"content": [{"type": "dance"}]}), ToolFailed, "did not answer with a tool result"),
    (giving([]), ToolLost, "no answer"),
]


async def test_an_answer_that_is_none_fails_its_call() -> None:
    """What the server said is in no line of the log."""
    unmistakable = {"content": [{"type": "text", "text": ["unmistakable"]}]}
    answers = [*ANSWERS, (giving(unmistakable), ToolFailed, "did not answer")]
    with structlog.testing.capture_logs() as lines:
        async with calling(*(Rogue(tools_call=answer) for answer, *_ in answers)) as box:
            for number, (_, kind, words) in enumerate(answers):
                with pytest.raises(ToolFailed, match=words) as failure:
                    await box.run(f"r{number or ''}_work", {"word": "unmistakable"}, call_of())
                assert type(failure.value) is kind
            await assert_others_unaffected(box)
    assert "unmistakable" not in json.dumps(lines, default=str)


async def test_progress_without_an_end_is_heard_a_few_times_until_the_time_is_up() -> None:
    watcher = Watcher()
    async with calling(Rogue(tools_call=streaming(endless_progress)), call_s=0.6) as box:
        running = asyncio.create_task(box.run("r_work", {}, call_of(progress=watcher)))
        await assert_others_unaffected(box)
        with pytest.raises(ToolLost, match=r"within 0.6 s"):
            await running
        assert 1 <= watcher.seen.qsize() <= 4
        await assert_others_unaffected(box)


class Endless(httpx2.AsyncByteStream):
    """A body of events without an end."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield event({"method": "ping"}).encode() * 4


async def test_a_server_is_read_at_a_pace() -> None:
    """However fast it sends: some events at once, then as many as the pace has it."""
    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Endless())
    bucket = TokenBucket(Rate(50 * EVENT_COSTS, 20 * EVENT_COSTS))
    read: list[bytes] = []

    async def reading() -> None:
        async for passed in GuardedBody(response, None, bucket=bucket, most_bytes=4096):
            read.append(passed)  # noqa: PERF401 - what was read stays when the time is up

    clock = asyncio.get_running_loop()
    started = clock.time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reading(), 0.5)
    events = b"".join(read).count(b"data:")
    assert 20 <= events <= 20 + 4 + 50 * (clock.time() - started)


async def test_an_answer_that_goes_on_after_its_cancellation_is_cut_off() -> None:
    ended = asyncio.Event()

    async def stubborn(message: dict[str, Any], send: Send) -> None:
        try:
            while True:
                await part(send, progress_of(message, 1))
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    rogue = Rogue(tools_call=streaming(stubborn))
    async with calling(rogue) as box:
        running = asyncio.create_task(box.run("r_work", {}, call_of()))
        await rogue.message("tools/call")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(ended.wait(), 10)


async def test_an_answer_that_is_to_be_resumed_at_once_and_for_ever_is_asked_for_slowly() -> None:
    """`retry: 0` with an id that never leads to an end would be a loop without a pause."""

    async def later(message: dict[str, Any], send: Send) -> None:
        await part(send, "id: 1\nretry: 0\ndata:\n\n", more=False)

    async def again(send: Send) -> None:
        await start(send)
        await part(send, "id: 2\nretry: 0\ndata:\n\n", more=False)

    rogue = Rogue(tools_call=streaming(later))
    async with calling(rogue, call_s=1.2) as box:
        rogue.open_stream = again
        with pytest.raises(ToolLost):
            await box.run("r_work", {}, call_of())
        resumed = [headers for headers in drained(rogue.streams) if "last-event-id" in headers]
        assert 1 <= len(resumed) <= 3


def drained(queue: asyncio.Queue[Any]) -> list[Any]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


async def test_an_answer_that_broke_off_is_resumed() -> None:
    requests: list[dict[str, Any]] = []

    async def broken(message: dict[str, Any], send: Send) -> None:
        requests.append(message)
        await part(send, "id: 7\nretry: 500\ndata:\n\n", more=False)

    async def rest(send: Send) -> None:
        await start(send)
        await part(
            send, event({"id": requests[0]["id"], "result": text_result("resumed")}, id="8"), more=False
        )

    rogue = Rogue(tools_call=streaming(broken))
    async with calling(rogue) as box:
        rogue.open_stream = rest
        assert await box.run("r_work", {}, call_of()) == "resumed"


async def test_a_pattern_that_takes_for_ever_is_not_matched() -> None:
    """A server may say what its results are like: in words that a regular expression never comes to an end with."""

    async def answer(message: dict[str, Any]) -> Any:
        return text_result("x", structuredContent={"a": "a" * 60 + "!"})

    rogue = Rogue(tools_call=answer)
    evil = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    rogue.tools = [tool_of("work", outputSchema=evil)]
    async with calling(rogue) as box:
        assert "!" in await box.run("r_work", {}, call_of())


async def test_what_a_server_may_not_ask_for_is_refused() -> None:
    form = {"message": "?", "requestedSchema": FORM, "mode": "form"}
    asked = [
        ("elicitation/create", form),
        *((name, {"messages": [], "maxTokens": 3}) for name in ("sampling/createMessage", "roots/list")),
        *((name, {}) for name in ("tools/call", "nonsense")),
    ]

    async def ask(message: dict[str, Any], send: Send) -> None:
        for number, (method, params) in enumerate(asked):
            await part(send, event({"id": f"q{number}", "method": method, "params": params}))
        await never()

    rogue = Rogue(tools_call=streaming(ask))
    async with calling(rogue) as box:
        running = asyncio.create_task(box.run("r_work", {}, call_of()))
        answers = {}
        while len(answers) < len(asked):
            if str((found := await rogue.got.get()).get("id")).startswith("q"):
                answers[found["id"]] = found
        assert all("error" in answer for answer in answers.values())
        running.cancel()
        await assert_others_unaffected(box)


async def test_a_list_that_changes_all_the_time_is_looked_at_now_and_then() -> None:
    looks = 0

    async def page(message: dict[str, Any]) -> Any:
        nonlocal looks
        looks += 1
        return {"tools": [tool_of("work")]}

    async def changing(send: Send) -> None:
        await start(send)
        while True:
            await part(send, event({"method": "notifications/tools/list_changed"}) * 20)

    rogue = Rogue(tools_list=page)
    rogue.open_stream = changing
    async with calling(rogue) as box:
        began = asyncio.get_running_loop().time()
        await eventually(lambda: looks > 5)
        assert asyncio.get_running_loop().time() - began >= 4 * TEMPO.apart
        await assert_others_unaffected(box)


async def test_cookies_of_a_server_are_not_kept() -> None:
    async def answer(message: dict[str, Any], send: Send) -> None:
        await part(send, event({"id": message["id"], "result": text_result("done")}), more=False)

    rogue = Rogue(tools_call=streaming(answer, set_cookie="a=b"))
    async with calling(rogue) as box:
        await box.run("r_work", {}, call_of())
        rogue.open_stream = None
        drained(rogue.streams)
        await box.run("r_work", {}, call_of())
    assert "cookie" not in rogue.headers
