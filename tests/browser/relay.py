"""A network of the test's own between the page and the server, which can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 64 * 1024


class Relay:
    """Passes bytes on between `url` and a server's port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Future[None]] = set()
        self._over = False
        self.url = ""

    def cut(self) -> None:
        """Every connection is gone at once, for both sides."""
        for writer in self._open:
            writer.transport.abort()

    async def end(self) -> None:
        """Cuts for good, also what comes from now on."""
        self._over = True
        self.cut()
        await asyncio.gather(*self._carrying)

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection until either side ends it."""
        if self._over:
            writer.transport.abort()
            return
        self._open.add(writer)
        carrying = asyncio.ensure_future(self._carry(reader, writer))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._open.add(back)
        if writer.is_closing():  # cut meanwhile
            back.transport.abort()
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        self._open -= {writer, back}


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await source.read(CHUNK_BYTES):
            target.write(piece)
            await target.drain()
    target.close()
    with suppress(ConnectionError):
        await target.wait_closed()


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    """A relay to a port of the loopback, on a free one."""
    made = Relay(port)
    async with await asyncio.start_server(made.take, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made
        await made.end()
