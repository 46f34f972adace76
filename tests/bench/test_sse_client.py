"""The client over HTTP, against a socket that answers as `transformers serve` does: byte for byte, in odd pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.settings import DEMO_MODEL
from tests.bench.client import ClientEvent, Kind, ServerMisbehaved
from tests.bench.sse_client import SseClient, of_transformers

EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant"},"index":0}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"1"},"index":0}]}\n\ndata: {"choices":[{"delta":',
    b'{"content":", "},"index":0}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"length"}],"usage":{"completion_tokens":2}}\n\n',
)
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%s\r\n" % (len(event), event) for event in (*EVENTS, b"")
)
MODELS = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"data":[]}'
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\ndead"


@asynccontextmanager
async def answering(*answers: bytes, anew: bool = False) -> AsyncIterator[SseClient]:
    """A peer whose prompts get these answers, each over a new connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0] or 0))
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        peer = await SseClient.open(f"http://{host}:{port}", of_transformers(str(DEMO_MODEL)), anew=anew)
        yield peer
        await peer.close()


async def end(peer: SseClient) -> None:
    while (await peer.receive()).kind is not Kind.END:
        pass


async def test_a_connection_takes_one_prompt_after_the_other() -> None:
    async with answering(STREAM, STREAM) as peer:
        for _ in range(2):
            await peer.ask("Count from 1 to 500.", 2)
            received = [await peer.receive() for _ in range(3)]
            assert received == [ClientEvent(Kind.TEXT), ClientEvent(Kind.TEXT), ClientEvent(Kind.END, 2)]


async def test_a_connection_was_used_before_its_first_prompt() -> None:
    async with answering(MODELS, STREAM) as peer:
        await peer.send_hello()
        await peer.ask("Count from 1 to 500.", 2)
        assert await peer.receive() == ClientEvent(Kind.TEXT)


async def test_a_server_that_closes_behind_each_reply_is_asked_over_new_connections() -> None:
    async with answering(STREAM, anew=True) as peer:
        for _ in range(3):
            await peer.ask("Count from 1 to 500.", 2)
            await end(peer)


async def test_a_refusal_is_raised_with_its_status() -> None:
    async with answering(REFUSAL) as peer:
        await peer.ask("Count from 1 to 500.", 2)
        with pytest.raises(ServerMisbehaved, match="503: dead"):
            await peer.receive()


async def test_a_stream_that_breaks_off_is_no_reply() -> None:
    async with answering(STREAM[:200]) as peer:
        await peer.ask("Count from 1 to 500.", 2)
        with pytest.raises(ServerMisbehaved, match="without an end"):
            await end(peer)
