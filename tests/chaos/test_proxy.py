"""The simulated network does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.chaos.proxy import Proxy, Weather, proxy

GONE = (ConnectionResetError, asyncio.IncompleteReadError)


@pytest.fixture
async def between() -> AsyncIterator[Proxy]:
    """A proxy to a server that echoes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1024):
                writer.write(data)
        writer.close()

    async with (
        await asyncio.start_server(echo, "127.0.0.1", 0) as server,
        proxy(server.sockets[0].getsockname()[1]) as made,
    ):
        yield made


@asynccontextmanager
async def opened(between: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_bytes_pass_both_ways(between: Proxy) -> None:
    async with opened(between) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write_eof()
        assert await reader.read() == b""


async def test_they_trickle_and_lag(between: Proxy) -> None:
    between.back = Weather(delay_s=0.001, piece_bytes=1)
    async with opened(between) as (reader, writer):
        writer.write(b"hello")
        assert await reader.read(100) == b"h"
        assert await reader.readexactly(4) == b"ello"


async def test_they_stand_still_until_they_flow_again(between: Proxy) -> None:
    async with opened(between) as (reader, writer):
        between.stall()
        writer.write(b"hello")
        reading = asyncio.create_task(reader.readexactly(5))
        await asyncio.wait([reading], timeout=0.05)
        assert not reading.done()
        between.flow()
        assert await reading == b"hello"


async def test_a_cut_is_seen_and_a_new_connection_passes(between: Proxy) -> None:
    async with opened(between) as (reader, writer):
        writer.write(b"hello")
        await reader.readexactly(5)
        between.cut()
        with pytest.raises(GONE):
            await reader.readexactly(1)
    async with opened(between) as (reader, writer):
        writer.write(b"there")
        assert await reader.readexactly(5) == b"there"


async def test_what_is_out_of_reach_is_reset(between: Proxy) -> None:
    between.refuse()
    async with opened(between) as (reader, _):
        with pytest.raises(GONE):
            await reader.readexactly(1)
    assert between.connections == 0


async def test_abandoned_connections_carry_nothing_and_new_ones_pass(between: Proxy) -> None:
    async with opened(between) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        between.abandon()
        writer.write(b"again")
        writer.write_eof()
        async with opened(between) as (other_reader, other_writer):
            other_writer.write(b"there")
            assert await other_reader.readexactly(5) == b"there"
        reading = asyncio.create_task(reader.readexactly(1))
        await asyncio.wait([reading], timeout=0.05)
        assert not reading.done()
        between.cut()
        with pytest.raises(GONE):
            await reading
