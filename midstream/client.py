"""An async client of wire protocol v1: one connection, many conversations, replies that can be stopped.

async with midstream.connect("ws://127.0.0.1:8000/v1/ws") as client:
reply = await client.send("Count from 1 to 300.")
async for text in reply:
print(text, end="")
if "100" in reply.text:
await reply.cancel()
print(reply.done["reason"])
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

Frame = dict[str, Any]
SUBPROTOCOL = "midstream.v1"


class ClientError(Exception):
    """The root of what the client raises."""


class NotConnected(ClientError):
    """There is no such server at this URL, or it does not let this client in."""


class Refused(ClientError):
    """The server refused a request. `code` is the protocol's word for the reason."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(f"{frame['code']}: {frame['message']}")
        self.code: str = frame["code"]
        self.retryable: bool = frame.get("retryable", False)


class Disconnected(ClientError):
    """The connection is gone; `code` is the WebSocket close code, None where there was none."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(f"disconnected ({code}): {reason}" if reason else f"disconnected ({code})")
        self.code = code


@dataclass(frozen=True, slots=True)
class Status:
    """Where a reply stands. `state`: `queued`, `prefill`, `retrying`, `unsaved`, or a word of a later server.

    `queue_position` (queued) counts from 1, the next to start; `progress` (prefill) is a share from 0 to 1.
    """

    state: str
    queue_position: int | None = None
    progress: float | None = None


class Reply:
    """A reply that is being written. Iterating gives its text; `text`, `status` and `done` hold what came so far."""

    def __init__(self, client: Client, accepted: Frame) -> None:
        self.accepted = accepted
        self.turn_id: str = accepted["turn_id"]
        self.text = ""
        self.status: Status | None = None
        self.done: Frame | None = None
        self._client = client
        self._frames: asyncio.Queue[Frame | Disconnected] = asyncio.Queue()

    async def cancel(self, *, rollback: bool = False) -> Frame:
        """Stops the reply; what this client received is what it has seen. Gives the `cancelled` frame."""
        mode = "rollback" if rollback else "keep"
        return await self._client.request(
            {"type": "cancel", "turn_id": self.turn_id, "mode": mode, "seen_off": len(self.text)}
        )

    async def wait(self) -> Frame:
        """Reads to the end; gives `done`. Raises Disconnected."""
        async for _ in self:
            pass
        return cast("Frame", self.done)

    def take(self, frame: Frame | Disconnected) -> None:
        """Takes a frame of this turn, or the end of the connection."""
        self._frames.put_nowait(frame)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts()

    async def events(self) -> AsyncIterator[str | Status]:
        """Reads to the end: text as it comes, and every `Status` between. Raises Disconnected, ClientError."""
        while self.done is None:
            frame = await self._frames.get()
            if isinstance(frame, Disconnected):
                raise frame
            match frame["type"]:
                case "done":
                    self.done = frame
                    self.text = self.text[: frame["chars"]]
                case "status":
                    self.status = Status(frame["state"], frame.get("queue_position"), frame.get("progress"))
                    yield self.status
                case _:
                    if new := self._new(frame):
                        self.text += new
                        yield new

    async def _texts(self) -> AsyncIterator[str]:
        async for event in self.events():
            if isinstance(event, str):
                yield event

    def _new(self, delta: Frame) -> str:
        """The part of a delta that did not come before. Raises ClientError where a part between is missing."""
        if delta["off"] > len(self.text):
            raise ClientError("a part of the reply is missing")
        return cast("str", delta["text"][len(self.text) - delta["off"] :])


class Client:
    """A connection after `hello`. Use `connect`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._replies: dict[str, Reply] = {}
        self._begun: dict[str, Reply] = {}  # by ref: whole replies may come before their sender looks
        self._lost: Disconnected | None = None
        self.ready: Frame = {}

    async def send(self, content: str, *, conversation_id: str = "default", **fields: Any) -> Reply:
        """Sends a message; gives its reply once it is accepted. Further fields as in the protocol.

        Raises Refused, Disconnected.
        """
        ref = uuid.uuid4().hex
        frame = {"type": "send", "client_msg_id": ref, "conversation_id": conversation_id, "content": content}
        try:
            await self.request(frame | fields, ref=ref)
            return self._begun[ref]
        finally:
            self._begun.pop(ref, None)

    async def history(self, conversation_id: str = "default", *, limit: int = 50) -> list[Frame]:
        """The newest messages of a conversation, oldest first. Raises Refused (`not_found`), Disconnected."""
        page = await self.request({"type": "history", "conversation_id": conversation_id, "limit": limit})
        messages: list[Frame] = page["messages"]
        return messages

    async def conversations(self) -> list[Frame]:
        """The client's conversations, newest first. Raises Refused, Disconnected."""
        rows: list[Frame] = (await self.request({"type": "conversations"}))["conversations"]
        return rows

    async def delete(self, conversation_id: str) -> None:
        """Removes a conversation. Raises Refused (`not_found`), Disconnected."""
        await self.request({"type": "delete", "conversation_id": conversation_id})

    async def request(self, frame: Frame, *, ref: str | None = None) -> Frame:
        """Sends a frame and gives its answer. Raises Refused, Disconnected."""
        if self._lost is not None:
            raise self._lost
        ref = ref or uuid.uuid4().hex
        answer = self._answers[ref] = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send(orjson.dumps(frame | {"ref": ref}).decode())
            return cast("Frame", await answer)
        except ConnectionClosed as closed:
            raise _disconnected(closed) from None
        finally:
            del self._answers[ref]

    async def read(self) -> None:
        """Reads frames until the connection ends; whoever waits is told."""
        lost = Disconnected(None, "the client is closed")
        try:
            while True:
                self._take(orjson.loads(await self._socket.recv()))
        except ConnectionClosed as closed:
            lost = _disconnected(closed)
        except (ValueError, LookupError, TypeError) as error:
            lost = Disconnected(None, f"the server does not speak the protocol: {error!r}")
        finally:
            self._lose(lost)

    def _take(self, frame: Frame) -> None:
        kind = frame["type"]
        if kind == "accepted" and frame.get("ref") in self._answers:
            self._begun[frame["ref"]] = self._replies.setdefault(frame["turn_id"], Reply(self, frame))
        if (answer := self._answers.get(frame.get("ref", ""))) and not answer.done():
            if kind == "error":
                answer.set_exception(Refused(frame))
            else:
                answer.set_result(frame)
        elif kind in ("status", "delta", "done") and (reply := self._replies.get(frame["turn_id"])):
            reply.take(frame)
            if kind == "done":
                del self._replies[frame["turn_id"]]

    def _lose(self, lost: Disconnected) -> None:
        self._lost = lost
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(lost)
        for reply in self._replies.values():
            reply.take(lost)


@asynccontextmanager
async def connect(url: str, *, client_id: str | None = None, **options: Any) -> AsyncIterator[Client]:
    """A connection that said hello. `options` are those of `websockets`.

    Raises NotConnected, Refused, Disconnected, OSError.
    """
    async with await _opened(url, **options) as socket:
        client = Client(socket)
        reading = asyncio.create_task(client.read())
        try:
            hello = {"type": "hello"} | ({"client_id": client_id} if client_id else {})
            client.ready = await client.request(hello)
            yield client
        finally:
            reading.cancel()
            await asyncio.wait((reading,))


async def _opened(url: str, **options: Any) -> ClientConnection:
    try:
        return await open_socket(url, subprotocols=[SUBPROTOCOL], **options)  # type: ignore[list-item]
    except (InvalidHandshake, InvalidURI) as error:
        raise NotConnected(str(error)) from error


def _disconnected(closed: ConnectionClosed) -> Disconnected:
    return Disconnected(closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else Disconnected(None, "")
