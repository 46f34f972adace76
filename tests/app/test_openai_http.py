"""OpenAI's endpoints as HTTP: for pages, for impatient clients and for broken requests."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from socket import socket as TcpSocket  # noqa: N812 - beside WebSockets, which are called sockets here
from typing import Any

import httpx
import pytest

from connections.api.chat_requests import ChatRequest
from connections.authentication.api_keys import digest_of
from engine.messages import PLAIN, Message, ReplySpec
from engine.scripted import ScriptedEngine
from sessions.limits.bounds import LARGE_BODIES, MAX_BODY_BYTES
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import peer

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello!"}]}

RUN: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "messages": [{"id": "1", "role": "user", "content": "Hello!"}],
    "tools": [],
    "context": [],
}


def post(running: InProcessService, body: str, length: int | None = None, **headers: str) -> str:
    """Send a request by hand."""
    lines = {"Host": f"127.0.0.1:{running.port}", "Connection": "close", **headers}
    head = "\r\n".join(f"{name}: {value}" for name, value in lines.items())
    return f"POST {CHAT} HTTP/1.1\r\n{head}\r\nContent-Length: {length or len(body)}\r\n\r\n{body}"


async def read_all(sock: TcpSocket) -> None:
    while await asyncio.get_running_loop().sock_recv(sock, 65_536):
        pass


async def test_a_stream_is_events_that_no_proxy_keeps(running: InProcessService) -> None:
    async with peer(running) as client:
        client.write(post(running, json.dumps(HELLO | {"stream": True})))
        head, _, body = (await client.rest()).partition("\r\n\r\n")
    assert "content-type: text/event-stream" in head.lower()
    assert "x-accel-buffering: no" in head.lower()
    assert "\n\ndata: [DONE]\n\n" in body
    assert "usage" not in body


@pytest.mark.parametrize("chars", [1, 300_000])
async def test_a_client_that_leaves_while_it_waits_for_the_whole_stops_the_engine(
    chars: int, tmp_path: Path
) -> None:
    engine = ScriptedEngine(by_hand=True)
    messages = [{"role": "assistant", "content": "x" * chars}, *HELLO["messages"]]
    async with serving(tmp_path, engine) as running:
        async with peer(running) as client:
            client.write(post(running, json.dumps(HELLO | {"messages": messages})))
            while not engine.requests:
                await running.get("/healthz")
            engine.step()
        while not engine.statistics().cancels:
            await running.get("/healthz")
    assert engine.statistics().steps == 1


async def test_a_client_that_does_not_read_holds_no_place(running: InProcessService) -> None:
    """Its turn ends as others do; the unread rest waits for the client, and is dropped with it."""
    running.engine.script(["x" * 1024] * 900)
    sock = await running.small_buffer_socket()
    body = json.dumps(HELLO | {"stream": True, "max_tokens": 4000})
    await asyncio.get_running_loop().sock_sendall(sock, post(running, body).encode())
    while not running.engine.requests or running.service._sessions.statistics().turns:
        await running.get("/healthz")
    assert running.engine.statistics().generated_tokens == 901
    sock.close()


async def test_a_client_that_does_not_read_is_cut_off_when_too_much_waits_for_it(
    running: InProcessService,
) -> None:
    running.engine.script(["x" * 16_384] * 2000)
    sock = await running.small_buffer_socket()
    body = json.dumps(HELLO | {"stream": True, "max_tokens": 4000})
    await asyncio.get_running_loop().sock_sendall(sock, post(running, body).encode())
    while not running.engine.statistics().cancels:
        await running.get("/healthz")
    assert running.engine.statistics().generated_tokens < 2000
    with sock, pytest.raises(ConnectionResetError):
        await read_all(sock)


async def test_tokens_of_these_turns_count_for_the_day(tmp_path: Path) -> None:
    async with serving(tmp_path, tokens_per_day=10) as running:
        answer = ""
        while " 429 " not in answer:  # an ended turn is counted as soon as the store takes it
            async with peer(running) as client:
                client.write(post(running, json.dumps(HELLO), Authorization="Bearer ann"))
                answer = await client.rest()
    assert "tokens_per_day" in answer


async def test_a_client_that_leaves_before_its_request_is_there_is_let_go(running: InProcessService) -> None:
    async with peer(running) as client:
        client.write(post(running, "{", length=100))
    assert (await running.get("/healthz"))[0] == 200
    assert running.engine.requests == []


async def test_a_body_without_measure_is_refused(running: InProcessService) -> None:
    async with peer(running) as client:
        client.write(post(running, " " * (MAX_BODY_BYTES + 1)))
        answer = await client.rest()
    assert answer == "" or (" 413 " in answer and "request_too_large" in answer)


async def test_a_model_that_is_not_loaded_is_unavailable(tmp_path: Path) -> None:
    class Loading(ScriptedEngine):
        facts = None  # as before the first load

    engine = Loading()
    async with serving(tmp_path, engine) as running:
        await running.get("/healthz")
        engine.fail()
        async with peer(running) as client:
            client.write(post(running, json.dumps(HELLO)))
            answer = await client.rest()
    assert " 503 " in answer
    assert "engine_unavailable" in answer


async def test_a_compressed_body_is_refused_before_it_is_read(running: InProcessService) -> None:
    """A few compressed bytes can be gigabytes."""
    for coding in ("gzip", "GZIP", "br", "deflate, gzip"):
        async with peer(running) as client:
            client.write(post(running, "x", length=1_000_000, **{"Content-Encoding": coding}))
            head, _, body = (await client.rest()).partition("\r\n\r\n")
        error = json.loads(body)["error"]
        assert " 415 " in head
        assert "accept-encoding: identity" in head.lower()
        assert error["code"] == "unsupported_content_encoding"
        assert "Compressed requests are not supported" in error["message"]


async def test_the_window_is_told_once_the_model_is_loaded(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/v1/models", "/v1/models/midstream-demo"):
        reported = json.loads((await running.get(path))[2])
        model = reported.get("data", [reported])[0]
        assert (model["max_model_len"], model["context_length"]) == (4096, 4096)
    monkeypatch.setattr(running.engine, "_facts", None)  # as before the first load
    (model,) = json.loads((await running.get("/v1/models"))[2])["data"]
    assert model.keys() == {"id", "object", "created", "owned_by"}


async def test_who_sends_no_token_shares_with_nobody(running: InProcessService) -> None:
    for _ in range(2):
        async with peer(running) as client:
            client.write(post(running, json.dumps(HELLO)))
            assert " 200 " in await client.rest()
    one, two = running.engine.requests
    assert one.cache_salt != two.cache_salt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", HELLO),
        ("/v1/responses", {"model": "midstream-demo", "input": "Hello."}),
        ("/v1/responses", {"model": "midstream-demo", "input": "Hello.", "store": False}),
        ("/v1/messages", HELLO | {"max_tokens": 10}),
        ("/v1/ag-ui", RUN),
    ],
)
async def test_users_of_an_application_can_not_guess_each_others_prompts_by_the_cache(
    path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    """Its key is one client here; `cached_tokens` and the time to the first token would tell."""
    key = "msk_of-an-application"
    named = [{}, {"user": "ann"}, {"user": "bob"}, {"safety_identifier": "ann"}, {"prompt_cache_key": "b"}]
    if path == "/v1/ag-ui":
        named = [{}, {"threadId": "ann"}, {"threadId": "bob"}]
    if path == "/v1/messages":
        named = [{}, *({"metadata": {"user_id": name}} for name in ("ann", "bob"))]
    async with (
        serving(tmp_path, api_keys=f"shop:{digest_of(key)}:app") as running,
        httpx.AsyncClient(base_url=running.url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        for fields in (*named, named[1]):
            assert (await client.post(path, json=body | fields)).status_code == 200
        salts = [request.cache_salt for request in running.engine.requests]
    assert len(set(salts)) == (4 if len(named) > 3 else 3)
    assert salts[-1] == salts[1]


async def test_a_refused_request_leaves_nothing_to_the_collector(running: InProcessService) -> None:
    """It may be megabytes, and the collector runs rarely."""
    gc.collect()
    gc.disable()
    try:
        async with peer(running) as client:
            client.write(post(running, json.dumps(HELLO | {"max_tokens": 0})))
            assert (await client.rest()).startswith("HTTP/1.1 400")
        assert [one for one in gc.get_objects() if type(one) is ChatRequest] == []
    finally:
        gc.enable()


async def test_a_large_body_keeps_its_place_until_its_text_is_counted(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parsed form takes memory while it waits for the tokenizer: the next request has to wait outside."""
    counted, count, waiting = asyncio.Event(), running.engine.count_tokens, 0

    async def late(messages: Sequence[Message], *, client: str = "", spec: ReplySpec = PLAIN) -> int:
        nonlocal waiting
        waiting += 1
        await counted.wait()
        return await count(messages, client=client, spec=spec)

    monkeypatch.setattr(running.engine, "count_tokens", late)
    long = {"role": "assistant", "content": "x" * 300_000}
    body = json.dumps(HELLO | {"messages": [long, *HELLO["messages"]]})
    async with AsyncExitStack() as clients:
        started = []
        for number in range(LARGE_BODIES + 1):
            client = await clients.enter_async_context(peer(running))
            client.write(post(running, body, Authorization=f"Bearer {number}"))
            started.append(asyncio.create_task(client.rest()))
            while waiting <= number and not started[-1].done():
                await running.get("/healthz")
        assert waiting == LARGE_BODIES
        assert [one.done() for one in started] == [False] * waiting + [True]
        assert [one.result()[:12] for one in started[waiting:]] == ["HTTP/1.1 503"]
        counted.set()
        assert {(await one)[:12] for one in started[:waiting]} == {"HTTP/1.1 200"}
    assert not len(running.service._lifecycle._limiters.bodies)
