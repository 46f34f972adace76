"""Slow, endless or too many peers, before they ask for anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from connections import http_protocol
from sessions.limits.bounds import MAX_HEAD_BYTES, MAX_HEADERS, PART_BYTES
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import answer, peer

HEAD = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
async def hurried(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service that waits briefly for a request, but long enough for a prompt one on a busy machine."""
    async with serving(tmp_path, request_s=0.5) as running:
        yield running


@pytest.mark.parametrize("begun", ["", "G", HEAD, HEAD + "Upgrade: websocket\r\nConnection: upgr"])
async def test_a_request_that_does_not_come_whole_is_not_waited_for(
    begun: str, hurried: InProcessService
) -> None:
    async with peer(hurried) as slow:
        slow.write(begun)
        assert (await slow.rest()).startswith("HTTP/1.1 408 Request Timeout\r\n")


async def test_nor_is_the_rest_of_its_body(hurried: InProcessService) -> None:
    async with peer(hurried) as slow:
        slow.write("POST /v1/tickets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert "200" not in (await slow.rest()).partition("\r\n")[0]


async def test_a_second_request_has_its_own_time(hurried: InProcessService) -> None:
    async with peer(hurried) as slow:
        slow.write(HEAD + "\r\n")
        assert (await slow.head()).startswith("HTTP/1.1 200")
        await slow.body(len('{"status":"ok"}'))
        slow.write(HEAD)
        assert (await slow.rest()).startswith("HTTP/1.1 408")


async def test_an_empty_line_behind_an_answer_keeps_no_socket(hurried: InProcessService) -> None:
    """It begins no request, and used to stop the timer of idle connections."""
    async with peer(hurried) as slow:
        slow.write(HEAD + "\r\n")
        assert (await slow.head()).startswith("HTTP/1.1 200")
        await slow.body(len('{"status":"ok"}'))
        slow.write("\r\n")
        assert await slow.rest() == ""  # a proxy could take an answer for that to its next request


async def test_a_socket_that_shook_hands_is_not_hurried(hurried: InProcessService) -> None:
    async with hurried.socket() as socket, peer(hurried) as slow:
        await slow.rest()  # ended by its deadline, which began later
        assert (await socket.ask(type="ping"))["type"] == "pong"


async def test_a_head_without_an_end_is_not_read_to_its_end(running: InProcessService) -> None:
    async with peer(running) as endless:
        endless.write(HEAD + "X: y\r\n" * (MAX_HEAD_BYTES // 6))
        assert (await endless.rest()).startswith("HTTP/1.1 431 ")


async def test_a_head_of_many_lines_is_not_read_to_its_end(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of it would be an object or two, and a thousand sockets may send one each."""
    taken = 0
    on_header = HttpToolsProtocol.on_header

    def count(self: http_protocol.HttpProtocol, name: bytes, value: bytes) -> None:
        nonlocal taken
        taken += 1
        on_header(self, name, value)

    monkeypatch.setattr(HttpToolsProtocol, "on_header", count)
    async with peer(running) as endless:
        endless.write(HEAD + "X: y\r\n" * 8_000 + "\r\n")
        assert (await endless.rest()).startswith("HTTP/1.1 431 ")
    assert taken <= MAX_HEADERS + PART_BYTES // len("X: y\r\n")


async def test_more_sockets_than_there_is_room_for_are_told_so(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, max_connections=1, max_pending_connections=1) as running,
        AsyncExitStack() as open_ones,
    ):
        room = running.service._server._server_limits.max_sockets
        for _ in range(room):
            await open_ones.enter_async_context(peer(running))
        status, why = await answer(running, "/healthz")
    assert (status, why) == (503, "The server has as many connections as it can take.")


async def test_what_is_no_http_is_told_so(running: InProcessService) -> None:
    async with peer(running) as confused:
        confused.write("SSH-2.0-OpenSSH_9.9\r\n\r\n")
        assert (await confused.rest()).startswith("HTTP/1.1 400 ")
