"""HTTP by hand, for requests that no client library would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.app.in_process_service import InProcessService


class RawPeer:
    """A TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, text: str) -> None:
        self._writer.write(text.encode())

    async def rest(self) -> str:
        """Return all bytes until the server closes; a reset is an end too."""
        try:
            return (await self._reader.read()).decode()
        except ConnectionResetError:
            return ""

    async def head(self) -> str:
        """Return the head of one answer."""
        return (await self._reader.readuntil(b"\r\n\r\n")).decode()

    async def body(self, size: int) -> str:
        return (await self._reader.readexactly(size)).decode()


@asynccontextmanager
async def peer(running: InProcessService) -> AsyncIterator[RawPeer]:
    """Open a connection to the service."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.close()


async def answer(running: InProcessService, path: str, **headers: str) -> tuple[int, str]:
    """Return status and body of a GET with these headers; underscores stand for hyphens."""
    given = {"Host": "127.0.0.1", "Connection": "close"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    async with peer(running) as one:
        one.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n")
        head, _, body = (await one.rest()).partition("\r\n\r\n")
    return int(head.split()[1]), body


async def exchange(running: InProcessService, *parts: bytes) -> bytes:
    """Write parts, each in a segment of its own where the loop allows it; return all bytes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    answers = bytearray()

    async def read() -> None:
        with suppress(ConnectionResetError):
            while part := await reader.read(1 << 16):
                answers.extend(part)

    reading = asyncio.create_task(read())
    with suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
    await reading
    writer.close()
    return bytes(answers)
