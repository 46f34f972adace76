"""An event stream's transport: what waits for a server, which is a list here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connections.events import transport
from connections.events.transport import EventTransport
from connections.http.exchange import Exchange

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


@pytest.mark.parametrize("turns", range(4))
async def test_what_is_written_as_a_beat_is_due_is_sent(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    monkeypatch.setattr(transport, "BEAT_S", 0.0)
    server = Server(turns)
    sending = asyncio.create_task(server.transport.send())
    await server.had_enough.wait()
    sending.cancel()
    assert server.given.count(TEXT) == 1
