"""Clients of the measured servers: a WebSocket of wire protocol v1, and chat completions over HTTP.

Each asks for one reply at a time and has the parts that the measurements need, and nothing that costs time. Event streams follow
the WHATWG HTML standard's section on server-sent events.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, StrEnum, auto
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httptools
import msgspec
from websockets.asyncio.client import ClientConnection, connect

READ_BYTES = 65536
HTTP_OK = 200
Fields = dict[str, object]
Event = dict[str, Any]
_decode: Callable[[bytes | str], Event] = msgspec.json.Decoder(Event).decode


class ServerMisbehaved(Exception):
    """A server refused a prompt, failed, or ended a stream without an end."""


class ServerApi(StrEnum):
    """How a server is spoken to."""

    WEBSOCKET = "websocket"
    """Midstream's wire protocol v1, or as much of it as a turn and its cancel need."""
    SSE = "sse"
    """OpenAI's chat completions, streamed, as transformers serves them."""
    CHAT = "chat"
    """OpenAI's chat completions, streamed, with OpenAI's own fields alone."""


class Kind(Enum):
    """Kinds of news that a client receives."""

    TEXT = auto()
    CANCELLED = auto()
    END = auto()


class ClientEvent(NamedTuple):
    """News that a client received; `tokens` and `steps_after` come with an END, if the server reports them."""

    kind: Kind
    tokens: int = 0
    steps_after: int | None = None


class WebSocketClient:
    """A connection that said hello. Use `open`. Replies are greedy. Compression is off: it would be measured too."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._conversation = ""

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to a server by its http address."""
        peer = cls(await connect(f"{url.replace('http', 'ws', 1)}/v1/ws", compression=None))
        await peer._put(type="hello", client_id=f"bench-{uuid.uuid4().hex}")
        await peer._event("ready")
        return peer

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Send a prompt as a conversation of its own; return once it is accepted. Raises ServerMisbehaved."""
        name = self._conversation = uuid.uuid4().hex
        params = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        await self._put(type="send", client_msg_id=name, conversation_id=name, content=content, params=params)
        await self._event("accepted")

    async def receive(self) -> ClientEvent:
        """Wait for the next news. Raises ServerMisbehaved."""
        frame = await self._event("delta", "cancelled", "done")
        if frame["type"] != "done":
            return ClientEvent(Kind.TEXT if frame["type"] == "delta" else Kind.CANCELLED)
        if frame["reason"] in ("error", "interrupted"):
            raise ServerMisbehaved(f"a reply ended with {frame['reason']}")
        steps_after = (frame.get("cancel") or {}).get("steps_after")
        return ClientEvent(Kind.END, frame["usage"]["generated_tokens"], steps_after)

    async def cancel(self) -> None:
        """Send `cancel`."""
        await self._put(type="cancel", conversation_id=self._conversation)

    async def close(self) -> None:
        """Leave."""
        await self._socket.close()

    async def _put(self, **frame: object) -> None:
        await self._socket.send(msgspec.json.encode(frame), text=True)

    async def _event(self, *wanted: str) -> Event:
        while True:
            event = _decode(await self._socket.recv())
            if event["type"] == "error":
                raise ServerMisbehaved(str(event))
            if event["type"] in wanted:
                return event


def request_body(api: ServerApi, model: str, more: Mapping[str, object], content: str, tokens: int) -> Fields:
    """Return a request for a reply of so many tokens. It is greedy unless `more`, fields of chat completions, says otherwise."""
    greedy: Fields = {"model": model, "stream": True, "temperature": 0}
    messages = [{"role": "user", "content": content}]
    match api:
        case ServerApi.CHAT:
            counted = {"max_completion_tokens": tokens, "stream_options": {"include_usage": True}}
            return greedy | counted | {"messages": messages, **more}
        case ServerApi.SSE:
            config = msgspec.json.encode(greedy_config(Path(model)) | {"max_new_tokens": tokens}).decode()
            return {"model": model, "messages": messages, "stream": True, "generation_config": config}
    raise ValueError(f"{api} is not spoken over HTTP")


def greedy_config(model: Path) -> Fields:
    """Return the generation config that makes replies greedy, of a model's folder.

    It is sent whole: `temperature: 0` stops transformers' continuous batching for good.
    """
    own: Fields = msgspec.json.decode((model / "generation_config.json").read_bytes())
    return {name: value for name, value in own.items() if name.endswith("_token_id")} | {"do_sample": False}


def _completion(event: Event) -> ClientEvent | None:
    if error := event.get("error"):
        raise ServerMisbehaved(str(error))
    if usage := event.get("usage"):
        return ClientEvent(Kind.END, usage["completion_tokens"])
    has_text = any(choice["delta"].get("content") for choice in event["choices"])
    return ClientEvent(Kind.TEXT) if has_text else None


class SseClient:
    """A client over HTTP/1.1. Use `open`."""

    def __init__(self, url: str, body: Callable[[str, int], Fields], *, anew: bool) -> None:
        """`anew`: each prompt uses a new connection, for servers that close one without notice."""
        self._address, self._body, self._anew = urlsplit(url), body, anew
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._heard: deque[ClientEvent] = deque()
        self._answer = _Answer()

    @classmethod
    async def open(
        cls, url: str, api: ServerApi, model: str, more: Mapping[str, object], *, anew: bool = False
    ) -> Self:
        """Connect to a server by its http address."""
        peer = cls(url, partial(request_body, api, model, more), anew=anew)
        await peer._connect()
        return peer

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Send a prompt as a conversation of its own."""
        if self._anew and self._answer.complete:
            self._writer.close()
            await self._connect()
        self._answer = _Answer()
        body = msgspec.json.encode(self._body(content, max_new_tokens))
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._address.netloc}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def receive(self) -> ClientEvent:
        """Wait for the next news. Raises ServerMisbehaved."""
        while not self._heard:
            self._heard.extend(await self._read())
        heard = self._heard.popleft()
        if heard.kind is Kind.END:
            await self._finish()
        return heard

    async def close(self) -> None:
        """Leave."""
        self._writer.close()

    async def _connect(self) -> None:
        address = self._address
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)

    async def _finish(self) -> None:
        """Read to the response's own end, so that the connection can take the next prompt."""
        while not self._answer.complete:
            await self._read()

    async def _read(self) -> list[ClientEvent]:
        if not (received := await self._reader.read(READ_BYTES)):
            raise ServerMisbehaved("the stream ended without an end")
        return self._answer.feed(received)


ServerClient = WebSocketClient | SseClient
"""One client with one connection, asking for one reply at a time."""


class _Answer:
    """An HTTP response and its event stream: httptools' parser, which undoes the chunked coding, calls it."""

    def __init__(self) -> None:
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self._ended = False

    def feed(self, received: bytes) -> list[ClientEvent]:
        """Take bytes and return the complete events. Raises ServerMisbehaved if an event is an error."""
        self._parser.feed_data(received)
        if self._parser.get_status_code() != HTTP_OK:
            raise ServerMisbehaved(f"{self._parser.get_status_code()}: {self._body.decode(errors='replace')}")
        *events, self._body = self._body.split(b"\n\n")
        return [news for event in events if (news := self._news(event)) is not None]

    def _news(self, event: bytes) -> ClientEvent | None:
        line = event.strip().rpartition(b"\n")[2].removeprefix(b"data:").strip()
        if not line or self._ended:
            return None
        if line == b"[DONE]":  # the end, where no usage was sent before
            return ClientEvent(Kind.END)
        news = _completion(_decode(line))
        self._ended = news is not None and news.kind is Kind.END
        return news

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Note the end."""
        self.complete = True
