"""Peers that send several requests at once, and take no answer or leave."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from connections.http_protocol import HttpProtocol, ParseScheduler
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import peer
from tests.sessions.chat_driver import WAIT_S, eventually

LONG = b"GET /static/vendor/formulas.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def https(running: InProcessService) -> list[HttpProtocol]:
    found = running.service._server.server_state.connections
    return [one for one in found if isinstance(one, HttpProtocol)]


async def test_no_answer_is_made_while_its_peer_does_not_take_the_one_before(
    running: InProcessService,
) -> None:
    """Else each would be kept whole in memory."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", running.port))
        deaf.sendall(LONG * 3)
        await eventually(lambda: any(one._next is not None for one in https(running)))
        (protocol,) = https(running)
        assert len(protocol.pipeline) == 1
        reader, writer = await asyncio.open_connection(sock=deaf)
        for _ in range(3):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].split()[0]))
        writer.close()


async def test_each_request_that_came_ahead_has_a_turn_of_its_own(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of 512 bytes can bring ten of them: a thousand peers would have all of theirs answered in one turn of the loop."""
    queue, turns = ParseScheduler.queue, Counter[str]()

    def counted(self: ParseScheduler, group: str, callback: Callable[[], None]) -> None:
        turns[group] += 1
        queue(self, group, callback)

    monkeypatch.setattr(ParseScheduler, "queue", counted)
    async with peer(running) as hasty, asyncio.timeout(WAIT_S):
        hasty.write(SHORT * 10)
        for _ in range(10):
            head = await hasty.head()
            await hasty.body(int(head.lower().partition("content-length: ")[2].split()[0]))
    assert list(turns.values()) == [9]


async def test_the_body_of_a_request_that_came_ahead_may_come_later(running: InProcessService) -> None:
    """Its head comes in one part with the request before, whose answer it waits for. Its body used to wait without an end."""
    body = '{"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}'
    chat = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with peer(running) as hasty, asyncio.timeout(WAIT_S):
        hasty.write(SHORT + chat + body[:10])
        assert "200 OK" in await hasty.head()
        await hasty.body(len('{"status":"ok"}'))
        hasty.write(body[10:])
        assert "200 OK" in await hasty.head()


async def test_who_leaves_with_a_request_ahead_stops_the_engine_all_the_same(tmp_path: Path) -> None:
    """uvicorn tells only the newest request that its peer is gone, but an older one is being answered."""
    engine = ScriptedEngine(by_hand=True)
    body = b'{"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}'
    chat = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with serving(tmp_path, engine) as running, asyncio.timeout(WAIT_S):
        async with peer(running) as hasty:
            hasty.write(SHORT + chat + body.decode() + SHORT)
            while not engine.requests:
                await running.get("/healthz")
            engine.step()
        while not engine.statistics().cancels:
            await running.get("/healthz")
