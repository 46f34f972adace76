"""uvicorn's HTTP protocol, with an end to its patience: for a request that does not come, and for too many sockets.

uvicorn waits without a limit for the rest of a request, and takes any number of connections and any length of a head.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.resets import reset
from connections.http.exchange import ABORT

MAX_HEAD_BYTES = 64 * 1024

_ANSWER = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n%b"


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`request_s`: what a peer has from its first byte, or from connecting, to the end of a request; `max_sockets`: at once."""

    request_s: float
    max_sockets: int


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    def __init__(self, *, patience: Patience, **rest: Any) -> None:
        super().__init__(**rest)
        self._patience = patience
        self._deadline: TimerHandle | None = None
        self._head_bytes: int | None = 0
        """Of the head that is coming, None behind its end."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request, or says that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._patience.max_sockets:
            self._refuse(b"503 Service Unavailable", b"The server has as many connections as it can take.")
        else:
            self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads on, unless the head is as long as one may be."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(b"431 Request Header Fields Too Large", b"The request's head is too long.")

    def on_message_begin(self) -> None:
        """A request begins, the first one or the next."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.abort}}
        self._head_bytes = 0
        if self._deadline is None:
            self._begin_to_wait()

    def on_headers_complete(self) -> None:
        """The head is there; an upgrade has no more."""
        self._head_bytes = None
        if self.parser.should_upgrade():
            self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is there."""
        self._stop_waiting()
        super().on_message_complete()

    def abort(self) -> None:
        """Ends the connection by a reset."""
        reset(self.transport)

    def _begin_to_wait(self) -> None:
        self._deadline = self.loop.call_later(self._patience.request_s, self._out_of_patience)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _out_of_patience(self) -> None:
        self._deadline = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # it is being answered: nothing of ours fits in between
        else:
            self._refuse(b"408 Request Timeout", b"The request did not come in time.")

    def _refuse(self, status: bytes, why: bytes) -> None:
        retry = b"Retry-After: 1\r\n" if status.startswith(b"503") else b""
        self._stop_waiting()
        self.transport.write(_ANSWER % (status, len(why), retry, why))
        self.transport.close()
