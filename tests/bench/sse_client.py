"""A client over HTTP/1.1 that reads a streamed chat completion. A cancel closes the connection: HTTP has no other way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httptools
import msgspec

from tests.bench.client import ClientEvent, Kind, ServerMisbehaved
from tests.bench.event_stream import EventStream
from tests.bench.formats import Speech

READ_BYTES = 65536
HTTP_OK = 200

Options = Callable[[int], dict[str, object]]
"""Returns the fields of a greedy request for a number of new tokens."""


class SseClient:
    """A connection that is kept between prompts, or one per prompt. Use `open`."""

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        host: str,
        options: Options,
        *,
        anew: bool = False,
        speech: Speech | None = None,
    ) -> None:
        self._reader, self._writer = streams
        self._host = host
        self._options = options
        self._anew = anew
        self._heard: deque[ClientEvent] = deque()
        self._speech = speech
        self._response = _Response(speech)

    @classmethod
    async def open(
        cls, url: str, options: Options, *, anew: bool = False, speech: Speech | None = None
    ) -> Self:
        """Connect to a server by its http address. `options`: the fields of a request beside its messages.

        `anew`: each prompt uses a new connection, for servers that close one without notice.
        """
        address = urlsplit(url)
        streams = await asyncio.open_connection(address.hostname, address.port)
        return cls(streams, address.netloc, options, anew=anew, speech=speech)

    async def send_hello(self) -> None:
        """Ask for the models, as a client of a socket says hello: the connection is accepted then, and its parsers have run."""
        self._response = _Response()
        self._writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())
        await self._finish()

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Send a prompt as a conversation of its own; the reply is greedy."""
        if self._anew and self._response.complete:
            self._writer.close()
            address = urlsplit(f"//{self._host}")
            self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        path, fields = "/v1/chat/completions", self._options(max_new_tokens)
        if self._speech is not None:
            path, fields = self._speech.path, self._speech.body(content, max_new_tokens)
        else:
            fields = {"messages": [{"role": "user", "content": content}], "stream": True, **fields}
        body = msgspec.json.encode(fields)
        self._response = _Response(self._speech)
        self._writer.write(_head(self._host, len(body), path) + body)
        await self._writer.drain()

    async def receive(self) -> ClientEvent:
        """Wait for the next news. Raises ServerMisbehaved."""
        while not self._heard:
            received = await self._reader.read(READ_BYTES)
            if not received:
                raise ServerMisbehaved("the stream ended without an end")
            self._heard.extend(self._response.feed(received))
        heard = self._heard.popleft()
        if heard.kind is Kind.END:
            await self._finish()
        return heard

    async def cancel(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def close(self) -> None:
        """Leave."""
        self._writer.close()

    async def _finish(self) -> None:
        """Read to the response's own end, so that the connection can take the next prompt."""
        while not self._response.complete:
            received = await self._reader.read(READ_BYTES)
            if not received:
                raise ServerMisbehaved("the response was cut off")
            self._response.feed(received)


def of_transformers(model: str) -> Options:
    """Return the options for transformers' server, with the model of a folder."""
    greedy = greedy_config(Path(model))

    def options(max_new_tokens: int) -> dict[str, object]:
        config = msgspec.json.encode(greedy | {"max_new_tokens": max_new_tokens}).decode()
        return {"model": model, "generation_config": config}

    return options


def of_openai(model: str, more: Mapping[str, object] | None = None) -> Options:
    """Return the options of OpenAI's clients; greedy unless `more` says otherwise."""

    def options(max_new_tokens: int) -> dict[str, object]:
        counted = {"stream_options": {"include_usage": True}}
        fields = {"model": model, "temperature": 0, "max_completion_tokens": max_new_tokens, **counted}
        return fields | dict(more or {})

    return options


def greedy_config(model: Path) -> dict[str, object]:
    """Return the generation config that makes replies greedy.

    It is sent whole: `temperature: 0` stops transformers' continuous batching for good.
    """
    own: dict[str, object] = msgspec.json.decode((model / "generation_config.json").read_bytes())
    kept = {name: value for name, value in own.items() if name.endswith("_token_id")}
    return kept | {"do_sample": False}


class _Response:
    """The callbacks of httptools' parser, which undoes the chunked coding."""

    def __init__(self, speech: Speech | None = None) -> None:
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._stream = EventStream(None if speech is None else speech.heard)
        self._bodies: list[bytes] = []

    def feed(self, received: bytes) -> list[ClientEvent]:
        self._parser.feed_data(received)
        body = b"".join(self._bodies)
        self._bodies.clear()
        if self._parser.get_status_code() != HTTP_OK:
            raise ServerMisbehaved(f"{self._parser.get_status_code()}: {body.decode(errors='replace')}")
        return self._stream.feed(body)

    def on_body(self, body: bytes) -> None:
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        self.complete = True


def _head(host: str, length: int, path: str) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {length}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
