"""An OpenAI-compatible server for tests, which can behave as badly as real ones do, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

BASE = "/base/v1"


@dataclass
class Answer:
    """How one request is answered: by default with `tokens` in turn, then the reason, the totals and the end mark.

    `burst`: the number of events in one piece; `size`: the bytes of one. `endless`: repeat the tokens without end.
    `deaf`: go on after the client has left. `hold_after`: so many tokens, then nothing until `go` is set. `cut_after`: so
    many tokens, then the connection breaks; `torn_after`: it breaks within a character; `end_after`: the stream just ends;
    `fail_after`: `error` comes, or `raw` as it is. A `status` other than 200 answers only with `error`.
    `deltas`: the deltas of chunks, in place of the tokens.
    """

    tokens: tuple[str, ...] = ("Hello", " there", ".")
    reason: str | None = "stop"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: Any = None
    raw: str | None = None
    endless: bool = False
    deaf: bool = False
    hold_after: int | None = None
    cut_after: int | None = None
    torn_after: int | None = None
    burst: int = 1
    end_after: int | None = None
    fail_after: int | None = None
    size: int | None = None
    totals: bool = True
    mark: bool = True
    deltas: tuple[dict[str, Any], ...] | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


class BrokenOff(Exception):
    """Ends a connection in the middle of an answer."""


class UpstreamServer:
    """Gives the `answers` in turn, then the `usual` one. It records what was asked, and what was made."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.usual = Answer()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.made = 0
        self._made_after_close = 0
        self.held = asyncio.Event()
        self.closed = asyncio.Event()
        self.spoke_to_nobody = asyncio.Event()
        self.models: Response = JSONResponse({"data": [{"id": "model"}]})
        self.looks = 0
        self.counted: Response = JSONResponse({"count": 42, "max_model_len": 4096})
        self.vectors: list[Response] = []
        self.holds_vectors = False
        self.app = Starlette(
            routes=[
                Route(f"{BASE}/models", self._models),
                Route("/base/tokenize", self._count, methods=["POST"]),
                Route(f"{BASE}/chat/completions", _App(self), methods=["POST"]),
                Route(f"{BASE}/embeddings", self._embed, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        self.looks += 1
        return self.models

    async def _count(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        return self.counted

    async def _embed(self, request: Request) -> Response:
        """Answer by `vectors` in turn, else with a text's length, 0.5 and -0.25; if `holds_vectors`, after the client left."""
        self.bodies.append(body := await request.json())
        self.headers.append(dict(request.headers))
        if self.holds_vectors:
            self.held.set()
            await self._watch(request)
        if self.vectors:
            return self.vectors.pop(0)
        data = [
            {"index": place, "embedding": [len(text), 0.5, -0.25]} for place, text in enumerate(body["input"])
        ]
        return JSONResponse({"data": data[::-1], "usage": {"prompt_tokens": 7, "total_tokens": 7}})

    async def answer(self, request: Request, send: Send) -> None:
        """Answer one request with the next answer."""
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if self.answers else self.usual
        if answer.status != 200:
            await JSONResponse(answer.error, answer.status, answer.headers)(
                request.scope, request.receive, send
            )
            return
        self.closed.clear()
        self.spoke_to_nobody.clear()
        self._made_after_close = 0
        watching = asyncio.create_task(self._watch(request))
        try:
            await self._stream(answer, send)
        finally:
            watching.cancel()

    async def _watch(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.closed.set()

    async def _stream(self, answer: Answer, send: Send) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for event in _in_bursts(self._events(answer), answer.burst):
            if self.closed.is_set() and not answer.deaf:
                return
            if isinstance(event, bytes):
                await _write(send, event, answer.size)
            else:
                self.held.set()
                await _first_of(event, self.closed)
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    def _events(self, answer: Answer) -> Iterator[str | bytes | asyncio.Event]:
        """Yield the events of an answer, and its pauses."""
        yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number, delta in enumerate(_deltas(answer)):
            if number == answer.hold_after:
                yield answer.go
            if number == answer.cut_after:
                raise BrokenOff
            if number == answer.torn_after:
                yield _torn(delta["content"])
                raise BrokenOff
            if number == answer.end_after or self.spoke_to_nobody.is_set():
                return
            if number == answer.fail_after:
                yield answer.raw or _event({"error": answer.error})
                return
            self._note_token()
            yield _event({"choices": [{"delta": delta, "finish_reason": None}]})
        yield from _ending(answer)

    def _note_token(self) -> None:
        self.made += 1
        self._made_after_close += self.closed.is_set()
        if self._made_after_close > 100:
            self.spoke_to_nobody.set()


class _App:
    """An ASGI application, since Starlette's own responses can't behave badly."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.answer(Request(scope, receive), send)


class _Quiet(uvicorn.Server):
    """Leaves signals to the test."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def upstream_server(port: int = 0) -> AsyncIterator[UpstreamServer]:
    """Run a server on a free port, or on the given one."""
    upstream = UpstreamServer()
    config = uvicorn.Config(upstream.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    listener = socket.create_server(("127.0.0.1", port))
    upstream.url = f"http://127.0.0.1:{listener.getsockname()[1]}{BASE}"
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield upstream
    finally:
        server.should_exit = server.force_exit = True
        await serving
        listener.close()


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    yield from answer.deltas or ()
    if answer.deltas is not None:
        return
    yield from ({"content": token} for token in answer.tokens)
    while answer.endless:
        yield from ({"content": token} for token in answer.tokens)


def _ending(answer: Answer) -> Iterator[str]:
    if answer.reason:
        yield _event({"choices": [{"delta": {}, "finish_reason": answer.reason}]})
    if answer.totals:
        made = len(answer.tokens) + 1
        details = {"cached_tokens": 5}
        usage = {"prompt_tokens": 11, "completion_tokens": made, "prompt_tokens_details": details}
        yield _event({"choices": [], "usage": usage})
    if answer.mark:
        yield "data: [DONE]\n\n"


def _in_bursts(events: Iterator[str | bytes | asyncio.Event], size: int) -> Iterator[bytes | asyncio.Event]:
    """Join up to `size` events into one piece. A pause ends a piece, and follows it."""
    pieces: list[bytes] = []
    for event in events:
        if isinstance(event, asyncio.Event):
            yield from [b"".join(pieces)] if pieces else []
            pieces = []
            yield event
            continue
        pieces.append(event.encode() if isinstance(event, str) else event)
        if len(pieces) >= size:
            yield b"".join(pieces)
            pieces = []
    yield from [b"".join(pieces)] if pieces else []


def _torn(token: str) -> bytes:
    """Return the beginning of an event, up to the middle of its token's last character."""
    content = token.encode()
    return _event({"choices": [{"delta": {"content": token}}]}).encode().partition(content)[0] + content[:-1]


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def _write(send: Send, event: bytes, size: int | None) -> None:
    step = size or len(event)
    for start in range(0, len(event), step):
        part = event[start : start + step]
        await send({"type": "http.response.body", "body": part, "more_body": True})


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
