"""A peer that serves the page and speaks exactly the frames that a test gives it.

The real server does not lose events, fall silent or refuse at a test's command; what the page does then is shown with
this peer. It knows how frames travel and what every handshake looks like. By itself it only answers pings, and requests for
what a test gave it: the history of conversations, and their list.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from app.page_files import Asset, Build, built, unsummed

PAGE = Path(__file__).resolve().parents[2] / "app" / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PROTOCOL = Subprotocol("midstream.v1")
LIMITS = {
    "max_frame_bytes": 65_536,
    "max_content_chars": 32_768,
    "max_new_tokens": 4_096,
    "context_tokens": 4_096,
}
SUGGESTIONS = ["My name is Ada.", "Count from 1 to 300.", "How do you say “good morning” in Chinese?"]
NOTHING = Headers({"Content-Length": "0"})
USAGE = {"prompt_tokens": 9, "cached_tokens": 0, "generated_tokens": 5, "sent_tokens": 5, "wasted_tokens": 0}


class PageConnection:
    """One connection of the page, from the server's side."""

    def __init__(self, socket: ServerConnection, leaves: dict[str, str]) -> None:
        self._socket = socket
        self._leaves = leaves
        self._frames: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._seen: list[dict[str, Any]] = []
        self._sounded = asyncio.Event()
        self.sounds: list[bytes] = []
        """Binary frames of the page."""
        self._texts: dict[str, str] = {}
        self.hello: dict[str, Any] = {}

    async def send_frame(self, kind: str, /, **fields: Any) -> None:
        """Sends one frame."""
        if kind == "delta":
            self._texts[fields["turn_id"]] = (
                self._texts.get(fields["turn_id"], "")[: fields["off"]] + fields["text"]
            )
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def receive(self, kind: str) -> dict[str, Any]:
        """The next frame of this type; others that come meanwhile are kept for later."""
        for index, frame in enumerate(self._seen):
            if frame["type"] == kind:
                return self._seen.pop(index)
        while (received := await self._frames.get()) is not None:
            if received["type"] == kind:
                return received
            self._seen.append(received)
        raise ConnectionError(f"the page left and said no {kind}")

    def take(self, frame: dict[str, Any] | None) -> None:
        """Keeps a frame of the page for the test; None is the end of the connection."""
        self._frames.put_nowait(frame)

    def store_audio(self, sound: bytes) -> None:
        """Keeps a binary frame."""
        self.sounds.append(sound)
        self._sounded.set()

    async def wait_for_audio(self, count: int) -> None:
        """Waits until so many binary frames have come."""
        while len(self.sounds) < count:
            self._sounded.clear()
            await self._sounded.wait()

    def kept(self, kind: str) -> list[dict[str, Any]]:
        """Frames of this type that came and were not asked for."""
        return [frame for frame in self._seen if frame["type"] == kind]

    async def welcome(self, *, heartbeat_ms: int = 20_000, **more: Any) -> Self:
        """Hears `hello` and says `ready`."""
        self.hello = await self.receive("hello")
        client_id = self.hello.get("client_id", "given-by-the-peer")
        server = {"name": "midstream", "version": "0"}
        fields = {"connection_id": "n", "client_id": client_id, "model": "scripted", "server": server}
        shown = {"suggestions": SUGGESTIONS}
        await self.send_frame(
            "ready", heartbeat_ms=heartbeat_ms, resume_ttl_s=0, limits=LIMITS, **fields | shown | more
        )
        return self

    async def accept(self, send: dict[str, Any], *, turn: str, seq: int, **more: Any) -> None:
        """Accepts a message as the given turn; without another word it follows the last reply."""
        conversation = send["conversation_id"]
        parent_id = self._leaves.get(conversation)
        ids = {"turn_id": turn, "message_id": f"{turn}-user", "parent_id": parent_id, "epoch": "e"}
        await self.send_frame(
            "accepted",
            client_msg_id=send["client_msg_id"],
            conversation_id=conversation,
            seq=seq,
            **ids | more,
        )

    async def finish(
        self, send: dict[str, Any], *, turn: str, seq: int, reason: str, chars: int, **more: Any
    ) -> None:
        """Ends a turn, and vouches for the text that was sent of it."""
        kept = self._texts.get(turn, "")[:chars].encode()
        if not more.get("removed"):
            self._leaves[send["conversation_id"]] = f"{turn}-reply"
        facts = {
            "conversation_id": send["conversation_id"],
            "message_id": f"{turn}-reply",
            "usage": USAGE,
            "timing": {"queued_ms": 0, "first_token_ms": 12, "total_ms": 40},
            "text_sha256": hashlib.sha256(kept).hexdigest(),
            "saved": True,
        }
        await self.send_frame("done", turn_id=turn, seq=seq, reason=reason, chars=chars, **facts | more)

    async def answer(self, request: dict[str, Any], kind: str, /, **fields: Any) -> None:
        """Answers a request."""
        about = {name: request[name] for name in ("ref", "conversation_id") if name in request}
        await self.send_frame(kind, **about | fields)

    async def refuse(self, request: dict[str, Any], code: str, **more: Any) -> None:
        """Refuses a request, or a message."""
        ref = request.get("ref", request.get("client_msg_id"))
        await self.send_frame("error", ref=ref, code=code, **{"message": "No.", "retryable": False} | more)

    async def closed(self) -> None:
        """Waits until the page has closed the connection."""
        await self._socket.wait_closed()

    async def drop(self, code: int = 1011, reason: str = "") -> None:
        """Closes the connection."""
        await self._socket.close(code, reason)


class FakeServer:
    """The page at `url`, and the page's connections in the order they were made."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[PageConnection] = asyncio.Queue()
        self._leaves: dict[str, str] = {}  # the last message of each conversation
        self.url = ""
        self.closed = False
        """Whether new connections are turned away; then those that stand are answered no more, either."""
        self.plain = False
        """Whether the page comes module by module: what a test imports is what the page has then, and no copy of it."""
        self.mute = False
        """Whether pings stay unanswered."""
        self.histories: dict[str, list[dict[str, Any]]] = {}
        """Messages of conversations, oldest first: told in pages to whoever asks."""
        self.listed: list[dict[str, Any]] | None = None
        """The list of conversations; None leaves requests for it to the test."""

    async def conn(self, **ready: Any) -> PageConnection:
        """The page's next connection, greeted."""
        return await (await self.stranger()).welcome(**ready)

    async def stranger(self) -> PageConnection:
        """The page's next connection, not greeted yet."""
        return await self._lines.get()

    def answer(self, _: ServerConnection, request: Request) -> Response | None:
        """Serves the page's files; None lets the WebSocket in, if the endpoints are open."""
        if request.path != "/v1/ws":
            return _file(request.path, plain=self.plain)
        return Response(503, "Service Unavailable", NOTHING, b"") if self.closed else None

    async def take(self, socket: ServerConnection) -> None:
        """Lends a connection to the test until it is closed."""
        conn = PageConnection(socket, self._leaves)
        await self._lines.put(conn)
        with suppress(ConnectionClosed):
            async for message in socket:
                if isinstance(message, bytes):
                    conn.store_audio(message)
                else:
                    await self._handle(conn, json.loads(message))
        conn.take(None)

    async def _handle(self, conn: PageConnection, frame: dict[str, Any]) -> None:
        conn.take(frame)
        ref = {name: frame[name] for name in ("ref", "t") if name in frame}
        if frame["type"] == "ping" and not (self.mute or self.closed):
            await conn.send_frame("pong", **ref)
        if frame["type"] == "history" and frame["conversation_id"] in self.histories:
            await conn.send_frame("history", **ref, **self._page(frame))
        if frame["type"] == "conversations" and self.listed is not None:
            await conn.send_frame("conversations", **ref, conversations=self.listed, has_more=False)

    def _page(self, request: dict[str, Any]) -> dict[str, Any]:
        conversation = request["conversation_id"]
        messages = self.histories[conversation]
        names = [message["message_id"] for message in messages]
        end = names.index(request["before"]) if request.get("before") else len(messages)
        start = max(0, end - request.get("limit", 50))
        page = {"messages": messages[start:end], "has_more": start > 0, "seq": len(messages)}
        return {"conversation_id": conversation, "epoch": "e", **page}


@asynccontextmanager
async def peer() -> AsyncIterator[FakeServer]:
    """Serves on a free port of the loopback."""
    made = FakeServer()
    server: Server
    async with serve(
        made.take, "127.0.0.1", 0, process_request=made.answer, subprotocols=[PROTOCOL]
    ) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


@cache
def shipped() -> Build:
    """The page as the service ships it, joined of its modules: a hundred requests for each visit, otherwise."""
    return built(PAGE)


def _file(path: str, *, plain: bool) -> Response:
    if path == "/" and not plain:
        return _answer(shipped().pages["index.html"])
    name = "index.html" if path == "/" else path.removeprefix("/static/")
    if (summed := unsummed(name)) is not None:
        name = summed[0]
    if name in shipped().made:
        return _answer(shipped().made[name])
    file = PAGE / name
    return (
        _answer(Asset(name, file.read_bytes()))
        if file.is_file()
        else Response(404, "Not Found", NOTHING, b"")
    )


def _answer(asset: Asset) -> Response:
    length = str(len(asset.content))
    headers = {"Content-Type": asset.media_type, "Content-Security-Policy": POLICY, "Content-Length": length}
    return Response(200, "OK", Headers(headers, Connection="close"), asset.content)
