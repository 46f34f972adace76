"""A client of OpenAI's Realtime protocol over a WebSocket, with the parts that a reply needs."""

from __future__ import annotations

import uuid
from typing import Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.bench.client import ClientEvent, Kind, ServerMisbehaved


class Usage(msgspec.Struct):
    """Usage of a response."""

    output_tokens: int = 0


class Response(msgspec.Struct):
    """Response in `response.done`."""

    status: str = ""
    usage: Usage | None = None


class Problem(msgspec.Struct):
    """Error in `error`."""

    message: str = ""


class Event(msgspec.Struct):
    """The fields of server events that are read."""

    type: str
    response: Response | None = None
    error: Problem | None = None


_decode = msgspec.json.Decoder(Event).decode


class RealtimeClient:
    """A connection after `session.created`. It asks once: a second prompt would follow in the same conversation."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, *, model: str) -> Self:
        """Connects to a server by its http address. Compression is off: it would be measured too."""
        address = f"{url.replace('http', 'ws', 1)}/v1/realtime?model={model}"
        key = {"Authorization": f"Bearer bench-{uuid.uuid4().hex}"}
        peer = cls(await connect(address, compression=None, additional_headers=key))
        await peer._event("session.created")
        await peer._put({"type": "session.update", "session": {"type": "realtime", "temperature": 0}})
        await peer._event("session.updated")
        return peer

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Sends a prompt, and asks for its reply."""
        parts = [{"type": "input_text", "text": content}]
        item = {"type": "message", "role": "user", "content": parts}
        await self._put({"type": "conversation.item.create", "item": item})
        await self._put({"type": "response.create", "response": {"max_output_tokens": max_new_tokens}})

    async def receive(self) -> ClientEvent:
        """Waits for what comes next. Raises ServerMisbehaved."""
        event = await self._event("response.output_text.delta", "response.done")
        if event.type != "response.done":
            return ClientEvent(Kind.TEXT)
        if event.response is None or event.response.status == "failed" or event.response.usage is None:
            raise ServerMisbehaved(f"a reply failed: {event.response}")
        return ClientEvent(Kind.END, event.response.usage.output_tokens)

    async def cancel(self) -> None:
        """Sends `response.cancel`."""
        await self._put({"type": "response.cancel"})

    async def close(self) -> None:
        """Leaves."""
        await self._socket.close()

    async def _put(self, event: dict[str, object]) -> None:
        await self._socket.send(msgspec.json.encode(event), text=True)

    async def _event(self, *wanted: str) -> Event:
        while True:
            event = _decode(await self._socket.recv())
            if event.error is not None:
                raise ServerMisbehaved(event.error.message)
            if event.type in wanted:
                return event
