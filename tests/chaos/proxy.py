"""A simulated network between two parties, which delays, trickles, stalls and cuts.

Each direction can be changed at any time; the change holds for the bytes that pass from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

CHUNK_BYTES = 64 * 1024


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """How bytes pass in one direction: `piece_bytes` at a time, each after `delay_s` seconds."""

    delay_s: float = 0.0
    piece_bytes: int = CHUNK_BYTES


FAIR = Weather()


class Proxy:
    """Passes TCP connections on to one address. `there` is the direction to the server, `back` the one from it."""

    def __init__(self, port: int) -> None:
        self.there = FAIR
        self.back = FAIR
        self.port = 0
        self.connections = 0
        self.requests = 0  # chunks of bytes that clients have sent
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._abandoned: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._answers = asyncio.Event()
        self._answers.set()
        self._refuses = False

    def cut(self) -> None:
        """Cut every connection at once, for both parties; bytes on the way are lost."""
        for writer in self._open:
            writer.transport.abort()

    def abandon(self) -> None:
        """Carry nothing more over the open connections, without a sign to either party, as after a change of network; new ones work."""
        self._abandoned |= self._open

    def stall(self) -> None:
        """Hold all bytes back without a sign to either party."""
        self._flows.clear()

    def hold_answers(self) -> None:
        """Hold back the bytes from the server only."""
        self._answers.clear()

    def flow(self) -> None:
        """Let bytes pass again, the held ones first."""
        self._flows.set()
        self._answers.set()

    def lead_to(self, port: int) -> None:
        """Pass new connections on to another port."""
        self._to = port

    def refuse(self, *, refuse: bool = True) -> None:
        """Reset new connections, or accept them again."""
        self._refuses = refuse

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._refuses:
                await self._carry(reader, writer)
        finally:
            await _end(writer)
            self._tasks.discard(task)

    async def ended(self) -> None:
        """Wait until no connection is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:  # nobody listens
            return
        self.connections += 1
        self._open |= {writer, to_server}
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_on(reader, to_server, back=False))
                ways.create_task(self._pass_on(from_server, writer, back=True))
        except* OSError:  # cut by either side
            pass
        finally:
            self._open -= {writer, to_server}
            self._abandoned -= {writer, to_server}
            await _end(to_server)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, back: bool
    ) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            self.requests += not back
            while chunk and target not in self._abandoned:
                weather = self.back if back else self.there
                await self._flows.wait()
                if back:
                    await self._answers.wait()
                if weather.delay_s:
                    await asyncio.sleep(weather.delay_s)
                target.write(chunk[: weather.piece_bytes])
                chunk = chunk[weather.piece_bytes :]
                await target.drain()
        if target not in self._abandoned and target.can_write_eof():
            target.write_eof()


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """Run a proxy to a loopback port, on a free port."""
    made = Proxy(port)
    async with await asyncio.start_server(made.take, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made
        made.flow()
        made.cut()
        await made.ended()
