"""A minimal WebSocket client: thousands fit in one process, and it reads only on request.

Its frames are masked with zeros (RFC 6455 lets the client choose), so that their payload is sent unchanged.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any, Self

Frame = dict[str, Any]

HANDSHAKE = (
    "GET /v1/ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{extra}\r\n"
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_FIN = 0x80
_MASKED = 0x80
_CHUNK = 64 * 1024
_LENGTH = re.compile(r"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)


class Refused(Exception):
    """The server closed or refused the connection and said why: an HTTP status or a close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Dropped(Exception):
    """The connection ended without a reason."""


class MinimalWebSocket:
    """One connection. It answers pings while it waits for frames."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._body = 0  # unread bytes of the last HTTP answer

    @classmethod
    async def connect(
        cls, address: tuple[str, int], *, source: str = "127.0.0.1", receive_buffer: int | None = None
    ) -> Self:
        """Open a TCP connection from a given loopback address. Raises OSError."""
        opened = socket.socket()
        opened.setblocking(False)
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        thin = cls(opened)
        try:
            opened.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            opened.bind((source, 0))
            await thin._loop.sock_connect(opened, address)
        except BaseException:
            opened.close()
            raise
        return thin

    async def handshake(self, *, path: str = "/v1/ws", extra: str = "") -> None:
        """Become a WebSocket; `extra`: more lines of the request. Raises Refused, Dropped."""
        host, port = self._socket.getpeername()
        head = HANDSHAKE.format(host=f"{host}:{port}", extra=extra).replace("/v1/ws", path, 1)
        await self.write(head.encode())
        status, reason = await self.answer()
        if status != 101:
            raise Refused(status, reason)

    async def send_hello(self, **hello: Any) -> Frame:
        """Shake hands and say hello; return `ready`. Raises Refused, Dropped."""
        await self.handshake()
        await self.put(type="hello", **hello)
        return await self.get()

    async def answer(self) -> tuple[int, str]:
        """Skip the last answer's body and read a head; return its status and reason. Raises Dropped."""
        while len(self._received) < self._body:
            await self._fill()
        del self._received[: self._body]
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            await self._fill()
        head = self._received[:end].decode("latin-1")
        del self._received[: end + 4]
        _, status, reason = head.partition("\r\n")[0].split(" ", 2)
        length = _LENGTH.search(head)
        self._body = int(length[1]) if length else 0
        return int(status), reason

    async def body(self) -> Frame:
        """Return the body of the last HTTP answer, which is an object. Raises Dropped."""
        while len(self._received) < self._body:
            await self._fill()
        reported: Frame = json.loads(bytes(self._received[: self._body]))
        return reported

    async def put(self, **frame: Any) -> None:
        """Send a frame of the protocol. Raises Dropped."""
        await self.send(json.dumps(frame).encode())

    async def send(self, payload: bytes, *, opcode: int = TEXT) -> None:
        """Send a WebSocket frame. Raises Dropped."""
        await self.write(framed(payload, opcode=opcode))

    async def write(self, data: bytes) -> None:
        """Send bytes. Raises Dropped."""
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise Dropped(str(error)) from error

    async def get(self) -> Frame:
        """Return the next frame of the protocol. Raises Refused, Dropped."""
        while True:
            opcode, payload = await self.read()
            if opcode == PING:
                await self.send(payload, opcode=PONG)
            if opcode == TEXT:
                frame: Frame = json.loads(payload)
                return frame
            if opcode == CLOSE:
                raise Refused(int.from_bytes(payload[:2], "big"), payload[2:].decode())

    async def read(self) -> tuple[int, bytes]:
        """Return the next WebSocket frame: opcode and payload. Raises Dropped."""
        while (taken := take_frame(self._received)) is None:
            await self._fill()
        return taken

    async def _fill(self) -> None:
        try:
            data = await self._loop.sock_recv(self._socket, _CHUNK)
        except OSError as error:
            raise Dropped(str(error)) from error
        if not data:
            raise Dropped("The server closed the TCP connection.")
        self._received += data

    async def until_over(self, *, within_s: float) -> None:
        """Wait, without a read, until the server has reset or ended the connection (Linux). Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED:  # noqa: ASYNC110 - nothing is read
                await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """End the connection without a close frame."""
        self._socket.close()


_ESTABLISHED = 1
_LOOK_S = 0.01
_BIND_ADDRESS_NO_PORT = 24
"""Linux: choose the port at the connect, so that one port serves many sources and destinations (ip(7))."""


def framed(payload: bytes, *, opcode: int = TEXT, first_bits: int = _FIN) -> bytes:
    """Return a client's frame (RFC 6455, section 5.2)."""
    length = len(payload)
    if length < 126:
        size = bytes([_MASKED | length])
    elif length < 1 << 16:
        size = bytes([_MASKED | 126]) + length.to_bytes(2, "big")
    else:
        size = bytes([_MASKED | 127]) + length.to_bytes(8, "big")
    return bytes([first_bits | opcode]) + size + bytes(4) + payload


def take_frame(received: bytearray) -> tuple[int, bytes] | None:
    """Take a server's frame off the front; None if no whole one is there. Servers here send no fragments."""
    if len(received) < 2:
        return None
    length, start = received[1] & 0x7F, 2
    if length >= 126:
        start = 4 if length == 126 else 10
        if len(received) < start:
            return None
        length = int.from_bytes(received[2:start], "big")
    if len(received) < start + length:
        return None
    opcode, payload = received[0] & 0x0F, bytes(received[start : start + length])
    del received[: start + length]
    return opcode, payload
