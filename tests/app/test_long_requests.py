"""A request may hold a whole conversation of megabytes: another thread makes of it what a model is asked."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from typing import Any, cast

import httpx
import pytest

from connections.api.agui.endpoint import AguiEndpoint
from connections.api.anthropic.endpoint import MessagesEndpoint
from connections.api.endpoint import RequestContext
from connections.api.openai_chat import ChatCompletionsEndpoint
from connections.api.responses import creator
from connections.authentication.access import AccessControl
from connections.http import Exchange
from connections.limiters import Limiters
from connections.native.server_info import ServerInfo
from sessions.limits.bounds import LARGE_BODY_BYTES
from tests.app.in_process_service import InProcessService

ENDPOINTS: dict[str, tuple[object, str, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletionsEndpoint, "turn_request", {"max_tokens": 5}),
    "/v1/messages": (MessagesEndpoint, "turn_request", {"max_tokens": 5}),
    "/v1/ag-ui": (AguiEndpoint, "turn_request", {"threadId": "t", "runId": "r"}),
    "/v1/responses": (creator, "messages_of", {"max_output_tokens": 5}),
}
"""The function that converts a request, where it is looked up, and fields of a body."""


def body_for(path: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    if path.startswith("/v1/responses"):
        items = [{"role": one["role"], "content": one["content"]} for one in messages]
        return {"model": "midstream-demo", "input": items}
    return {"model": "midstream-demo", "messages": messages}


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_long_conversation_is_gone_through_beside_the_event_loop(
    path: str, running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, body = ENDPOINTS[path]
    made_by: list[threading.Thread] = []
    made = getattr(where, name)

    def noting(*given: object) -> object:
        made_by.append(threading.current_thread())
        return made(*given)

    monkeypatch.setattr(where, name, staticmethod(noting))
    short = [{"id": "m", "role": "user", "content": "Hello!"}]
    long = [{"id": "m", "role": "user", "content": "x" * 1_000}] * (LARGE_BODY_BYTES // 1_000 + 1)
    async with httpx.AsyncClient(base_url=running.url) as client:
        for messages in (short, long):
            await client.post(path, json=body_for(path, messages) | body)
    assert [one is threading.main_thread() for one in made_by] == [True, False]


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_long_body_is_let_go_of_when_it_is_refused(path: str, running: InProcessService) -> None:
    """No error in a circle keeps it for the garbage collector, which comes seldom."""
    *_, fields = ENDPOINTS[path]
    many = [{"id": "m", "role": "user", "content": "a"}] * (LARGE_BODY_BYTES // 20)
    body = json.dumps(body_for(path, many) | fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(*running.url.removeprefix("http://").split(":"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):  # of the last one something may still be under way
            writer.write(head + body)
            assert b" 400 " in await reader.readuntil(b"\r\n\r\n")
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        held = [held for one in gc.garbage for held in gc.get_referents(one)]
        assert len({id(one) for one in held if isinstance(one, bytes) and len(one) == len(body)}) < 3
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        writer.close()


async def test_who_leaves_lets_no_second_thread_begin_beside_his() -> None:
    nothing = object()
    request_context = RequestContext(
        access=cast("AccessControl", nothing),
        limiters=cast("Limiters", nothing),
        server_info=cast("ServerInfo", nothing),
    )
    exchange = Exchange({"type": "http", "headers": []}, cast("Any", nothing), cast("Any", nothing))
    exchange.body_bytes = LARGE_BODY_BYTES + 1
    began, may_end, at_work = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert may_end.wait(10)
        at_work.append("first")

    first = asyncio.create_task(request_context.run_in_thread(exchange, work))
    assert await asyncio.to_thread(began.wait, 10)
    first.cancel()
    second = asyncio.create_task(request_context.run_in_thread(exchange, lambda: at_work.append("second")))
    for _ in range(10):
        await asyncio.sleep(0)
    may_end.set()
    await second
    assert first.cancelled()
    assert at_work == ["first", "second"]
