"""Every endpoint that makes replies: how each one is asked, where its text is, how it is stopped and how it refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.app.in_process_service import Frame
from tests.jwt_signing import KEY

CHAT_ID = "ours"
"""The conversation, at endpoints that have conversations."""
_numbers = count()
PIXEL_BASE64 = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
PIXEL = f"data:image/png;base64,{PIXEL_BASE64}"


class Refused(Exception):
    """An endpoint's refusal. `status`: of HTTP, if it was answered over HTTP; `message`: its sentence."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint. `frames_for`: the body of a request, or all frames of a socket; `image_content`: the same with an image in its place.

    `text` returns an event's text of the reply; `refused` returns the sentence of a refusal in this endpoint's shape, which
    final events may have too. `stop`: the frame that stops a reply; None if leaving stops it. `stores_history`: True
    if the endpoint stores a history.
    """

    name: str
    path: str
    frames_for: Callable[[str, Any], list[Frame]]
    image_content: Any
    text: Callable[[Frame], str]
    refused: Callable[[Any], str]
    is_socket: bool = False
    stop: Frame | None = None
    stores_history: bool = False
    sends_hello: bool = False
    """The first frame carries the key."""


def _message(content: Any) -> Frame:
    return {"role": "user", "content": content}


def _stream(**fields: Any) -> list[Frame]:
    return [{"stream": True, "max_tokens": 64} | fields]


def _native(model: str, content: Any) -> list[Frame]:
    send = {"type": "send", "client_msg_id": f"m{next(_numbers)}", "conversation_id": CHAT_ID}
    return [
        {"type": "hello", "client_id": "ann"},
        send | {"content": content, "params": {"model": model} if model else {}},
    ]


def _realtime(model: str, content: Any) -> list[Frame]:
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    item = {"type": "message", "role": "user", "content": parts}
    return [{"type": "conversation.item.create", "item": item}, {"type": "response.create"}]


def _response(model: str, content: Any) -> list[Frame]:
    named = {"model": model or "midstream-demo", "conversation": CHAT_ID}
    return [{"input": [_message(content)], "stream": True} | named]


def _run(model: str, content: Any) -> list[Frame]:
    run = {"threadId": "t", "runId": "r", "messages": [{"id": "1", **_message(content)}]}
    return [
        run | {"state": {}, "tools": [], "context": [], "forwardedProps": {"model": model} if model else {}}
    ]


def _ui_message(content: Any) -> Frame:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {"id": f"m{next(_numbers)}", "role": "user", "parts": parts}


def _ui_chat(model: str, content: Any) -> list[Frame]:
    return [{"id": CHAT_ID, "messages": [_ui_message(content)]} | ({"model": model} if model else {})]


def _of(kind: str, field: str = "delta") -> Callable[[Frame], str]:
    return lambda event: str(event[field]) if event.get("type") == kind else ""


def _error(body: Frame) -> str:
    assert all(body["error"][field] for field in ("type", "code"))
    return str(body["error"]["message"])


def _native_error(frame: Frame) -> str:
    assert (frame["type"], isinstance(frame["retryable"], bool)) == ("error", True)
    return str(frame["message"])


def _run_error(event: Frame) -> str:
    assert (event["type"], bool(event["code"])) == ("RUN_ERROR", True)
    return str(event["message"])


def _anthropics_error(body: Frame) -> str:
    assert (body["type"], body["error"]["type"].endswith("_error")) == ("error", True)
    return str(body["error"]["message"])


IMAGE_URL = [{"type": "image_url", "image_url": {"url": PIXEL}}]
INPUT_IMAGE = [{"type": "input_image", "image_url": PIXEL}]
FILE = [{"type": "file", "mediaType": "image/png", "url": PIXEL}]
SOURCE = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL_BASE64}}]

ENDPOINTS = (
    Endpoint(
        name="native",
        path="/v1/ws",
        frames_for=_native,
        image_content=IMAGE_URL,
        text=_of("delta", "text"),
        refused=_native_error,
        is_socket=True,
        sends_hello=True,
        stop={"type": "cancel", "conversation_id": CHAT_ID},
        stores_history=True,
    ),
    Endpoint(
        name="chat completions",
        path="/v1/chat/completions",
        frames_for=lambda model, content: _stream(
            model=model or "midstream-demo", messages=[_message(content)]
        ),
        image_content=IMAGE_URL,
        text=lambda chunk: "".join(one["delta"].get("content") or "" for one in chunk["choices"]),
        refused=_error,
    ),
    Endpoint(
        name="realtime",
        path=f"/v1/realtime?client_id=ann&conversation_id={CHAT_ID}",
        frames_for=_realtime,
        image_content=INPUT_IMAGE,
        text=_of("response.output_text.delta"),
        refused=_error,
        is_socket=True,
        stop={"type": "response.cancel"},
        stores_history=True,
    ),
    Endpoint(
        name="responses",
        path="/v1/responses",
        frames_for=_response,
        image_content=INPUT_IMAGE,
        text=_of("response.output_text.delta"),
        refused=_error,
        stores_history=True,
    ),
    Endpoint(
        name="responses socket",
        path="/v1/responses",
        frames_for=lambda model, content: [{"type": "response.create", **_response(model, content)[0]}],
        image_content=INPUT_IMAGE,
        text=_of("response.output_text.delta"),
        refused=_error,
        is_socket=True,
        stop={"type": "midstream:response.cancel"},
        stores_history=True,
    ),
    Endpoint(
        name="messages",
        path="/v1/messages",
        frames_for=lambda model, content: _stream(
            model=model or "midstream-demo", messages=[_message(content)]
        ),
        image_content=SOURCE,
        text=lambda event: event.get("delta", {}).get("text", ""),
        refused=_anthropics_error,
    ),
    Endpoint(
        name="ag-ui",
        path="/v1/ag-ui",
        frames_for=_run,
        image_content=[{"type": "image", "source": {"type": "url", "value": PIXEL}}],
        text=_of("TEXT_MESSAGE_CONTENT"),
        refused=_run_error,
    ),
    Endpoint(
        name="ai sdk",
        path="/v1/ai-sdk/chat?client_id=ann",
        frames_for=_ui_chat,
        image_content=FILE,
        text=_of("text-delta"),
        refused=str,
        stores_history=True,
    ),
)


class HasUrl(Protocol):
    """A service, in this process or another one."""

    url: str


class Reply:
    """A reply that is being read. `events`: those read so far."""

    def __init__(
        self, endpoint: Endpoint, events: AsyncIterator[Frame], socket: ClientConnection | None = None
    ) -> None:
        self.events = list[Frame]()
        self._way = endpoint
        self._events = events
        self._socket = socket

    async def text(self, upto: str) -> str:
        """Return the text once it contains `upto`. Raises Refused; StopAsyncIteration if the reply ends before."""
        seen = ""
        while upto not in seen:
            self.events.append(await anext(self._events))
            seen += self._way.text(self.events[-1])
        return seen

    async def stop(self) -> None:
        """Stop the reply, at an endpoint whose client need not leave for that."""
        if self._socket is not None and self._way.stop is not None:
            await self._socket.send(json.dumps(self._way.stop))


@asynccontextmanager
async def open_reply(
    running: HasUrl, endpoint: Endpoint, content: Any = "Hello?", *, model: str = "", key: str = KEY
) -> AsyncIterator[Reply]:
    """Ask at an endpoint; leaving the block disconnects. Raises Refused."""
    headers = {"Authorization": f"Bearer {key}"}
    frames = endpoint.frames_for(model, content)
    if not endpoint.is_socket:
        async with (
            httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as client,
            client.stream("POST", endpoint.path, json=frames[0]) as answer,
        ):
            await _check(endpoint, answer)
            yield Reply(endpoint, _lines(answer))
        return
    url = running.url.replace("http", "ws") + endpoint.path
    if model and endpoint.path.startswith("/v1/realtime"):
        url += f"&model={model}"
    if endpoint.sends_hello:
        frames[0]["token"], headers = key, {}
    with _denied(endpoint):
        async with connect(url, max_queue=None, additional_headers=headers) as opened:
            for frame in frames:
                await opened.send(json.dumps(frame))
            yield Reply(endpoint, _frames(endpoint, opened), opened)


async def _check(endpoint: Endpoint, answer: httpx.Response) -> None:
    """Raise Refused unless the answer is a reply."""
    if answer.status_code != httpx.codes.OK:
        body = await answer.aread()
        refusal = json.loads(body) if answer.headers["content-type"] == "application/json" else body.decode()
        raise Refused(answer.status_code, endpoint.refused(refusal))


async def _lines(answer: httpx.Response) -> AsyncIterator[Frame]:
    """Yield the events of an answer."""
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


async def _frames(endpoint: Endpoint, opened: ClientConnection) -> AsyncIterator[Frame]:
    """Yield the frames of a socket. Raises Refused."""
    try:
        while True:
            frame = json.loads(await opened.recv())
            if frame["type"] == "error":
                raise Refused(None, endpoint.refused(frame))
            yield frame
    except ConnectionClosed as closed:
        raise Refused(None, opened.close_reason or "") from closed


@contextmanager
def _denied(endpoint: Endpoint) -> Iterator[None]:
    """Return the body of a refused handshake, which is the same as over HTTP."""
    try:
        yield
    except InvalidStatus as denied:
        raise Refused(denied.response.status_code, _error(json.loads(denied.response.body))) from None
