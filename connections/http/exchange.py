"""One HTTP request and its answer, for as long as its client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessions.errors import Refused

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Of a request, which holds a whole conversation; what a model can read of it is much less."""
LARGE_BODY_BYTES = 256 * 1024
"""Few may be longer at once: what is read, and made of it, takes some times its length."""
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies shall pass each event on at once
]
ABORT = "midstream.abort"
"""The ASGI extension that ends an HTTP connection at once: its `abort` takes nothing and gives nothing."""


class RequestTooLarge(Refused):
    """The request's body is longer than one may be."""

    code = "request_too_large"


class UnsupportedEncoding(Refused):
    """The request's body is compressed."""

    code = "unsupported_content_encoding"


class Exchange:
    """`begun`: the answer's head was sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = Request(scope, receive)
        self.begun = False
        self._receive = receive
        self._send = send

    async def body(self, admit_large: Callable[[], None], *, most: int = MAX_BODY_BYTES) -> bytes:
        """The request's body of `most` bytes; `admit_large` is called once where it is a large one, and may raise.

        Raises UnsupportedEncoding, RequestTooLarge, ClientDisconnect.
        """
        coding = self.request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):  # a few bytes of gzip can become gigabytes
            raise UnsupportedEncoding(
                "This server does not take compressed requests. Send the body without Content-Encoding."
            )
        body = bytearray()
        async for part in self.request.stream():
            if len(body) <= LARGE_BODY_BYTES < len(body) + len(part):
                admit_large()
            body += part
            if len(body) > most:
                raise RequestTooLarge(f"The request is too large: its body may have {most} bytes.")
        return bytes(body)

    async def while_there(self, work: Coroutine[None, None, None]) -> None:
        """Does the work once the body was read, and cancels it where the client goes away. Raises ClientDisconnect then."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            await working
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
            del (
                working
            )  # it would hold its traceback, that this frame, this frame the task: and all of it the request

    async def left(self) -> None:
        """Waits, once the body was read, until the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, response: Response) -> None:
        """Sends an answer, whole."""
        self.begun = True
        await response(self.request.scope, self._receive, self._send)

    async def begin_events(self, request_id: str, more: Mapping[str, str] | None = None) -> None:
        """Begins an answer that is a stream of server-sent events. `more`: headers."""
        own = [(name.lower().encode(), value.encode()) for name, value in (more or {}).items()]
        await self.begin([*_EVENTS, (b"x-request-id", request_id.encode()), *own])

    async def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Begins an answer that is written in parts."""
        self.begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, part: bytes, *, more: bool = True) -> None:
        """Sends a part; waits while the client reads slower than they come."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def abort(self) -> None:
        """Ends the connection of a client that does not read: what it did not take is dropped."""
        self.cut_off()
        await self.left()

    def cut_off(self) -> None:
        """The same, at once; `left` tells when it is done."""
        self.request.scope["extensions"][ABORT]["abort"]()
