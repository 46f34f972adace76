"""One HTTP request and its answer, while its client is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sessions.errors import Refused
from sessions.limits.bounds import LARGE_BODY_BYTES, MAX_BODY_BYTES

_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # so that proxies pass each event on at once
]
ABORT = "midstream.abort"
"""The ASGI extension that ends an HTTP connection at once: its `abort` takes and returns nothing."""
WRITE = "midstream.write"
"""The ASGI extension that sends a part of a streamed answer at once: its `write` takes bytes and returns whether it did."""


class RequestTooLarge(Refused):
    """The request's body is too long."""

    code = "request_too_large"


class UnsupportedEncoding(Refused):
    """The request's body is compressed."""

    code = "unsupported_content_encoding"


class Exchange:
    """`begun`: whether the answer's head was sent. `body_bytes`: of the request's body, once it was read."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = Request(scope, receive)
        self.begun = False
        self.body_bytes = 0
        self._receive = receive
        self._send = send
        self._write_now: Callable[[bytes], bool] | None = (
            scope.get("extensions", {}).get(WRITE, {}).get("write")
        )

    async def body(self, admit_large: Callable[[], None], *, most: int = MAX_BODY_BYTES) -> bytes:
        """Return the body, of `most` bytes at most; `admit_large` is called once if it is a large one, and may raise.

        Raises UnsupportedEncoding, RequestTooLarge, ClientDisconnect.
        """
        coding = self.request.headers.get("content-encoding", "").strip().lower()
        if coding not in ("", "identity"):  # a few bytes of gzip can become gigabytes
            raise UnsupportedEncoding(
                "This server does not take compressed requests. Send the body without Content-Encoding."
            )
        too_large = RequestTooLarge(f"The request is too large: its body may have {most} bytes at most.")
        announced = int(self.request.headers.get("content-length", 0))
        if announced > most:  # before "Expect: 100-continue" is answered
            raise too_large
        body = bytearray()
        async for part in self.request.stream():
            if len(body) <= LARGE_BODY_BYTES < len(body) + len(part):
                admit_large()
            body += part
            if len(body) > most:
                raise too_large
        self.body_bytes = len(body)
        return bytes(body)

    async def cancel_on_disconnect(self, work: Coroutine[None, None, None]) -> None:
        """Do the work after the body was read, and cancel it if the client leaves: that raises ClientDisconnect."""
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
            )  # the error's traceback holds this frame, the frame the task, and all of them the request

    async def left(self) -> None:
        """Wait, after the body was read, until the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, response: Response) -> None:
        """Send a whole answer."""
        self.begun = True
        await response(self.request.scope, self._receive, self._send)

    async def begin_events(self, request_id: str, more: Mapping[str, str] | None = None) -> None:
        """Begin an answer of server-sent events. `more`: headers."""
        own = [(name.lower().encode(), value.encode()) for name, value in (more or {}).items()]
        await self.begin([*_EVENTS, (b"x-request-id", request_id.encode()), *own])

    async def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Begin an answer in parts."""
        self.begun = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, part: bytes, *, more: bool = True) -> None:
        """Send a part; wait if the client reads too slowly."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    def write_nowait(self, part: bytes) -> bool:
        """Send a part in this turn of the event loop; return False where the head was not sent, or its client reads more slowly."""
        return self._write_now is not None and self._write_now(part)

    async def abort(self) -> None:
        """End the connection of a client that does not read; unread bytes are dropped."""
        self.cut_off()
        await self.left()

    def cut_off(self) -> None:
        """The same, at once; `left` returns when it is done."""
        self.request.scope["extensions"][ABORT]["abort"]()
