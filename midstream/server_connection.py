"""One connection to the server: sends frames, returns their answers, and passes everything else to a listener.

The client's errors are defined here, too:

ClientError
├── NotConnected   no such server, or it does not admit this client
├── Refused        the server refused a request
└── Disconnected   the connection is lost for good
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

Frame = dict[str, Any]
"""A frame of the protocol, decoded."""
_FINAL = frozenset({1000, 1008, 4401, 4403})
"""Close codes after which another connection would end the same way: normal, policy, unauthenticated, forbidden."""


class ClientError(Exception):
    """The root of what the client raises."""


class NotConnected(ClientError):
    """There is no such server at this URL, or it does not admit this client."""


class Refused(ClientError):
    """The server refused a request. `code` is the protocol's; `retry_after_ms` may be None."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(f"{frame['code']}: {frame['message']}")
        self.code: str = frame["code"]
        self.retryable: bool = frame.get("retryable", False)
        self.retry_after_ms: int | None = frame.get("retry_after_ms")


class Disconnected(ClientError):
    """The connection is lost; `code` is the WebSocket close code, or None."""

    def __init__(self, code: int | None, reason: str, *, final: bool = False) -> None:
        super().__init__(f"disconnected ({code}): {reason}" if reason else f"disconnected ({code})")
        self.code = code
        self.final = final or code in _FINAL
        """Whether another connection would end the same way."""


PATH = "/v1/ws"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_PORTS = {"ws": 80, "wss": 443}
_BARE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d+(?:/.*)?")


def socket_url(address: str) -> str:
    """Return the WebSocket URL for the URL of the page, or for `host:port`. Anything else is returned unchanged.

    `host:port` means TLS unless it is this machine: keys and client ids must not cross a network unencrypted.
    A `ws` or `wss` URL with a path is already the WebSocket's.
    """
    if _BARE.fullmatch(address):
        address = f"ws://{address}" if is_here(urlsplit(f"ws://{address}").hostname) else f"wss://{address}"
    parts = urlsplit(address)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        return address
    path = parts.path.rstrip("/")
    if not path or (parts.scheme.startswith("http") and not path.endswith(PATH)):
        path += PATH
    return urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme], path=path, fragment=""))


def is_here(host: str | None) -> bool:
    """Return whether a host's name or address is this machine's loopback interface."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of a WebSocket's URL. All names of this machine become `localhost`."""
    parts = urlsplit(url)
    host = "localhost" if is_here(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS.get(parts.scheme)}"


SUBPROTOCOL = "midstream.v1"
QUIET_S = 2.5
"""Silence after which the server is pinged while it owes something: an answer, or more of a reply."""
IDLE_S = 20.0
"""The same silence while the server owes nothing."""
ANSWER_S = 3.5
"""Further silence after which the connection is given up."""


class ServerConnection:
    """A socket that is read until it ends.

    `on_frame` gets every frame, before the request that it answers, if any, gets it; but no errors that answer a request.
    `is_waiting`: whether more of a reply is to come.
    """

    def __init__(
        self, socket: ClientConnection, on_frame: Callable[[Frame], None], is_waiting: Callable[[], bool]
    ) -> None:
        self._socket = socket
        self._on_frame = on_frame
        self._is_waiting = is_waiting
        self._received_at = monotonic()
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._lost: Disconnected | None = None
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._watch())

    async def request(self, frame: Frame, *, ref: str | None = None) -> Frame:
        """Send a frame and return its answer. Raises Refused, Disconnected."""
        if self._lost is not None:
            raise self._lost
        ref = ref or uuid.uuid4().hex
        answer = self._answers[ref] = asyncio.get_running_loop().create_future()
        try:
            await self.send(frame | {"ref": ref})
            return cast("Frame", await answer)
        finally:
            del self._answers[ref]

    async def send(self, frame: Frame) -> None:
        """Send a frame that has no answer. Raises Disconnected."""
        try:
            await self._socket.send(orjson.dumps(frame).decode())
        except ConnectionClosed as closed:
            raise _disconnected(closed) from None

    async def lost(self) -> Disconnected:
        """Wait for the end; return its reason."""
        return await asyncio.shield(self._reading)

    def abandon(self) -> None:
        """End the connection at once, as if it were lost."""
        self._socket.transport.abort()

    async def close(self) -> None:
        """End the connection."""
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        await self._socket.close()

    async def _read(self) -> Disconnected:
        lost = Disconnected(None, "the client is closed", final=True)
        try:
            while True:
                message = await self._socket.recv()
                self._received_at = monotonic()
                if isinstance(message, str):
                    self._take(orjson.loads(message))
        except ConnectionClosed as closed:
            lost = _disconnected(closed)
        except (ValueError, LookupError, TypeError) as error:
            lost = Disconnected(None, f"the server does not speak the protocol: {error!r}", final=True)
        finally:
            self._watching.cancel()
            self._lost = lost
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(lost)
        return lost

    async def _watch(self) -> None:
        """End a connection on which nothing comes any more, not even the answer to a ping."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(QUIET_S)
                owes = self._answers or self._is_waiting()
                if monotonic() < self._received_at + (QUIET_S if owes else IDLE_S):
                    continue
                pinged_at = monotonic()
                with suppress(TimeoutError):
                    async with asyncio.timeout(ANSWER_S):
                        await (await self._socket.ping())
                    self._received_at = monotonic()
                if self._received_at < pinged_at:
                    self.abandon()

    def _take(self, frame: Frame) -> None:
        kind, answer = frame["type"], self._answers.get(frame.get("ref", ""))
        if kind != "error" or answer is None:
            self._on_frame(frame)
        if answer is not None and not answer.done():
            if kind == "error":
                answer.set_exception(Refused(frame))
            else:
                answer.set_result(frame)


async def opened(
    url: str, on_frame: Callable[[Frame], None], is_waiting: Callable[[], bool], **options: Any
) -> ServerConnection:
    """Open a connection; `options` are those of `websockets`. Raises NotConnected, OSError."""
    options = {"ping_interval": None} | options  # this connection pings by itself
    try:
        socket = await open_socket(url, subprotocols=[SUBPROTOCOL], **options)  # type: ignore[list-item]
    except (InvalidHandshake, InvalidURI) as error:
        raise NotConnected(str(error)) from error
    return ServerConnection(socket, on_frame, is_waiting)


def _disconnected(closed: ConnectionClosed) -> Disconnected:
    return Disconnected(closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else Disconnected(None, "")
