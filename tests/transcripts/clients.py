"""The two ends of a dialogue: clients over WebSocket and HTTP, which receive events as they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Self

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

Json = Any
_HTTP_S = 30.0
_HEADERS = (
    *("retry-after", "location", "x-midstream-ignored", "x-midstream-code"),
    *("access-control-allow-origin", "access-control-allow-methods", "access-control-allow-credentials"),
)
"""Headers that are part of an answer, if they are there."""


class Peer:
    """A client. What it receives waits in `events`."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Json] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Leave, as a client whose window is closed."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.result()  # raises what ended it


class SocketPeer(Peer):
    """A client over WebSocket."""

    @classmethod
    async def opened(cls, url: str, headers: dict[str, str], protocols: list[str]) -> Self:
        """Connect; a refused handshake is an event."""
        peer = cls()
        try:
            peer._socket = await connect(
                url, additional_headers=headers, subprotocols=protocols or None, max_queue=None, max_size=None
            )
        except InvalidStatus as refused:
            peer._socket = None
            body = refused.response.body.decode()
            peer.events.put_nowait({"status": refused.response.status_code, "body": _decoded(body)})
            return peer
        peer._reading = asyncio.create_task(peer._read())
        return peer

    async def send(self, frame: Json, *, text: str | None = None) -> None:
        """Send a frame: JSON, or text as it is."""
        await self._socket.send(json.dumps(frame) if text is None else text)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
        await super().close()

    async def _read(self) -> None:
        try:
            while True:
                self.events.put_nowait(_decoded(await self._socket.recv()))
        except ConnectionClosed:
            end = {"closed": self._socket.close_code, "reason": self._socket.close_reason}
            self.events.put_nowait(end)


class RequestPeer(Peer):
    """A client that sends one HTTP request, and reads its answer or its stream."""

    def __init__(self, url: str, method: str, path: str, text: str, headers: dict[str, str]) -> None:
        super().__init__()
        self._reading = asyncio.create_task(self._run(url, method, path, text, headers))

    async def _run(self, url: str, method: str, path: str, text: str, headers: dict[str, str]) -> None:
        typed = {"content-type": "application/json"} if text else {}
        async with (
            httpx.AsyncClient(base_url=url, timeout=_HTTP_S) as client,
            client.stream(method, path, content=text or None, headers=typed | headers) as answer,
        ):
            kept = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
            kind = answer.headers.get("content-type", "").partition(";")[0]
            self.events.put_nowait({"status": answer.status_code, "content-type": kind, **kept})
            if kind == "text/event-stream":
                await self._read_stream(answer)
            else:
                await answer.aread()
                is_lines = kind == "application/x-ndjson"
                body = [*map(_decoded, answer.text.splitlines())] if is_lines else _decoded(answer.text)
                self.events.put_nowait({"body": body})

    async def _read_stream(self, answer: httpx.Response) -> None:
        event: dict[str, Json] = {}
        with contextlib.suppress(httpx.RemoteProtocolError):
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name in ("event", "id", "data"):
                    event[name] = _decoded(value) if name == "data" else value
                elif not line and event:
                    self.events.put_nowait(event)
                    event = {}
            self.events.put_nowait({"end": True})
            return
        self.events.put_nowait({"end": "cut off"})


def _decoded(text: str | bytes) -> Json:
    if isinstance(text, bytes):
        return {"bytes": len(text)}
    try:
        return json.loads(text)
    except ValueError:
        return text
