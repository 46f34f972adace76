"""An event stream's transport: what waits for a server, which is a list here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connections.api import endpoint as transport
from connections.api.endpoint import PIECE_BYTES, EventTransport
from connections.http import WRITE, Exchange

TEXT = b"data: {}\n\n"
WRITES = 4


class Server:
    """Keeps what it is given. As the first comes, a text is written so many turns of the loop later."""

    def __init__(self, turns: int) -> None:
        self.given: list[bytes] = []
        self.had_enough = asyncio.Event()
        self._turns = turns
        exchange = Exchange({"type": "http"}, self._receive, self._send)
        self.transport = EventTransport(exchange, b"retry: 1\n\n")

    async def _receive(self) -> Any:
        await asyncio.Future()

    async def _send(self, message: Any) -> None:
        self.given.append(message["body"])
        if len(self.given) == 1:
            self._write_later(self._turns)
        if len(self.given) == WRITES:
            self.had_enough.set()
            await asyncio.Future()

    def _write_later(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._write_later, turns - 1)
        else:
            self.transport.write(TEXT)


class SlowServer:
    """Takes one part of an answer, and no other before it is told to."""

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.ended = False
        self.has_some = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.transport = EventTransport(Exchange({"type": "http"}, self._receive, self._send), b"")

    async def _receive(self) -> Any:
        await asyncio.Future()

    async def _send(self, message: Any) -> None:
        if self.given:
            await self.goes_on.wait()
        self.given.append(message["body"])
        self.ended = not message["more_body"]
        self.has_some.set()


async def test_a_long_event_is_handed_on_in_pieces() -> None:
    """What the server was given and its peer does not take is kept there, beside what waits here."""
    server, long = SlowServer(), b"data: " + b"x" * 300_000 + b"\n\n"
    sending = asyncio.create_task(server.transport.send())
    server.transport.write(long)
    await server.has_some.wait()
    assert len(server.given[0]) <= PIECE_BYTES
    assert not server.transport.is_writable()
    server.goes_on.set()
    await server.transport.writable()
    sending.cancel()
    await server.transport.close(1000, "")
    assert (b"".join(server.given), server.ended) == (long, True)


@pytest.mark.parametrize("turns", range(4))
async def test_what_is_written_as_a_beat_is_due_is_sent(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(transport, "BEAT_S", 0.0)
    server = Server(turns)
    sending = asyncio.create_task(server.transport.send())
    await server.had_enough.wait()
    sending.cancel()
    assert server.given.count(TEXT) == 1


async def test_the_head_of_an_answer_goes_with_the_events_that_waited_for_it() -> None:
    """Both in one turn of the loop: a reader wakes once for them, not twice."""
    given: list[Any] = []

    async def send(message: Any) -> None:
        given.append(message["type"])

    def write(part: bytes) -> bool:
        given.append(part)
        return True

    scope = {"type": "http", "extensions": {WRITE: {"write": write}}}
    started = EventTransport(Exchange(scope, asyncio.Queue().get, send), b"")
    await started.begin("r1")
    assert given == ["http.response.start"]
    started = EventTransport(Exchange(scope, asyncio.Queue().get, send), b"retry: 1\n\n")
    await started.begin("r2")
    started.write(TEXT)
    assert given[1:] == ["http.response.start", b"retry: 1\n\n", TEXT]
