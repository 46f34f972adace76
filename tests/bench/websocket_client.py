"""A client over a WebSocket: the parts of wire protocol v1 that the measurements need, and nothing that costs time."""

from __future__ import annotations

import uuid
from typing import Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from tests.bench.client import ClientEvent, Kind, ServerMisbehaved


class Usage(msgspec.Struct):
    """Usage in `done`."""

    generated_tokens: int = 0


class CancelFacts(msgspec.Struct):
    """The cancel in `done`, if there was one."""

    steps_after: int | None = None


class Frame(msgspec.Struct):
    """The fields of server frames that are read."""

    type: str
    code: str = ""
    message: str = ""
    reason: str = ""
    usage: Usage | None = None
    cancel: CancelFacts | None = None


_decode = msgspec.json.Decoder(Frame).decode


class WebSocketClient:
    """A connection that said hello. Use `open`."""

    def __init__(self, socket: ClientConnection, sampling: dict[str, float]) -> None:
        self._socket = socket
        self._sampling = sampling
        self._conversation = ""

    @classmethod
    async def open(cls, url: str, *, temperature: float = 0.0, top_p: float = 1.0) -> Self:
        """Connect to a server by its http address. Compression is off: it would be measured too.

        Replies are greedy if the temperature is 0.
        """
        address = url.replace("http", "ws", 1) + "/v1/ws"
        sampling = {"temperature": temperature, "top_p": top_p} if temperature else {"temperature": 0.0}
        peer = cls(await connect(address, compression=None), sampling)
        await peer._put({"type": "hello", "client_id": f"bench-{uuid.uuid4().hex}"})
        await peer._frame("ready")
        return peer

    async def ask(self, content: str, max_new_tokens: int) -> None:
        """Send a prompt as a conversation of its own."""
        self._conversation = uuid.uuid4().hex
        await self._put(
            {
                "type": "send",
                "client_msg_id": self._conversation,
                "conversation_id": self._conversation,
                "content": content,
                "params": {"max_new_tokens": max_new_tokens, **self._sampling},
            }
        )

    async def receive(self) -> ClientEvent:
        """Wait for the next news. Raises ServerMisbehaved."""
        frame = await self._frame("delta", "cancelled", "done")
        match frame.type:
            case "delta":
                return ClientEvent(Kind.TEXT)
            case "cancelled":
                return ClientEvent(Kind.CANCELLED)
        if frame.reason in ("error", "interrupted") or frame.usage is None:
            raise ServerMisbehaved(f"a reply ended with {frame.reason or 'no reason'}")
        steps_after = frame.cancel.steps_after if frame.cancel else None
        return ClientEvent(Kind.END, frame.usage.generated_tokens, steps_after)

    async def cancel(self) -> None:
        """Send `cancel`."""
        await self._put({"type": "cancel", "conversation_id": self._conversation})

    async def close(self) -> None:
        """Leave."""
        await self._socket.close()

    async def _put(self, frame: dict[str, object]) -> None:
        await self._socket.send(msgspec.json.encode(frame), text=True)

    async def _frame(self, *wanted: str) -> Frame:
        while True:
            frame = _decode(await self._socket.recv())
            if frame.type == "error":
                raise ServerMisbehaved(f"{frame.code}: {frame.message}")
            if frame.type in wanted:
                return frame
