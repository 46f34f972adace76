"""Attacks from outside, each against the service and against one without the guard: there it has to succeed.

Forged tokens, secrets in the log, slow handshakes and guessed conversations are tried beside what guards against them.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http import httptools_impl
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.routes import PAGE
from app.server import address, listen, server
from connections.middleware import AllowedOrigins
from sessions.limits.bounds import MAX_FRAME_BYTES
from tests.app.in_process_service import InProcessService, serving
from tests.chaos.minimal_websocket import CLOSE, TEXT, MinimalWebSocket, framed

EVIL = "https://evil.example"
SECRET = "from __future__ import annotations"
"""The first bytes of a file beside the page's folder that is not part of the page."""
TRAVERSALS = (
    "/static/../routes.py",
    "/static/%2e%2e/routes.py",
    "/static/..%2froutes.py",
    "/static/%2e%2e%2froutes.py",
    "/static/client/../../routes.py",
    "/static/./../routes.py",
    "/static//../routes.py",
    f"/static/{PAGE.parent}/routes.py",
    f"/static/%2f{PAGE.parent}/routes.py",
)
SPLITS = (
    "/static%0d%0aX-Injected:%20yes",
    "/static/client%0d%0aX-Injected:%20yes%0d%0a%0d%0a",
    "/static%0aX-Injected:%20yes",
    "/static%E5%98%8D%E5%98%8AX-Injected:%20yes",
)


async def hijacks(running: InProcessService) -> bool:
    """Another site's page opens a socket in a visitor's browser, and sends a message."""
    try:
        async with connect(running.ws_url, additional_headers={"Origin": EVIL}) as socket:
            await socket.send('{"type":"hello"}')
            return bool(json.loads(await socket.recv())["type"] == "ready")
    except InvalidStatus:
        return False


async def test_a_page_of_another_site_opens_no_socket(running: InProcessService) -> None:
    assert not await hijacks(running)


async def test_without_the_check_of_origins_it_would(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AllowedOrigins, "allow", lambda *_, **__: True)
    assert await hijacks(running)


async def requested(port: int, target: str, host: str = "127.0.0.1") -> tuple[str, str]:
    """Header and body of the answer to a raw request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode("latin-1").partition("\r\n\r\n")
    writer.close()
    return head, body


async def climbs_out(port: int) -> bool:
    """A path leads out of the page's folder, to the program beside it."""
    bodies = [(await requested(port, path))[1] for path in TRAVERSALS]
    return any(SECRET in body for body in bodies)


async def splits_an_answer(port: int) -> bool:
    """The request's text comes back in a header, followed by a header that the attacker wrote."""
    heads = [(await requested(port, path))[0] for path in SPLITS]
    return any(line.lower().startswith("x-injected") for head in heads for line in head.splitlines())


async def plants_its_host(port: int) -> bool:
    """A redirect leads to the host that the attacker named."""
    return "evil.example" in (await requested(port, "/static", host="evil.example"))[0]


async def careless(scope: Scope, receive: Receive, send: Send) -> None:
    """Serves any file that a path leads to, and redirects to any URL."""
    path = scope["path"].removeprefix("/static/").lstrip("/")
    found = next((one for one in (PAGE / path, Path("/") / path) if one.is_file()), None)
    host = dict(scope["headers"])[b"host"]
    location = b"http://%s/%s" % (host, unquote(scope["raw_path"].decode()).encode())
    status = 200 if found is not None else 307
    await send({"type": "http.response.start", "status": status, "headers": [(b"location", location)]})
    await send({"type": "http.response.body", "body": found.read_bytes() if found else b""})


@asynccontextmanager
async def served(running: InProcessService, app: ASGIApp) -> AsyncIterator[int]:
    """Runs another application in our server; yields its port."""
    with listen("127.0.0.1", 0) as listener:
        other = server(app, server_limits=running.service._server._server_limits)
        task = asyncio.create_task(other.serve(sockets=[listener]))
        yield int(address(listener).rpartition(":")[2])
        other.end()
        await task


@pytest.mark.parametrize("attack", [climbs_out, splits_an_answer, plants_its_host])
async def test_paths_and_hosts_are_only_what_they_may_be(
    attack: Callable[[int], Awaitable[bool]], running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await attack(running.port)
    monkeypatch.setattr(httptools_impl, "HEADER_VALUE_RE", re.compile(b"(?!)"))  # uvicorn's own second check
    async with served(running, careless) as port:
        assert await attack(port)


async def inflates(running: InProcessService) -> bool:
    """A small frame becomes a large message in the server's memory."""
    text = b'{"type":"ping","t":"' + b" " * (MAX_FRAME_BYTES // 2) + b'"}'
    deflater = zlib.compressobj(wbits=-15)
    bomb = (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")
    assert len(bomb) * 100 < len(text)
    one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
    try:
        await one.handshake(extra="Sec-WebSocket-Extensions: permessage-deflate\r\n")
        await one.put(type="hello")
        await one.read()
        await one.write(framed(bomb, first_bits=0xC0))
        opcode, _ = await one.read()
        assert opcode in (TEXT, CLOSE)
        return opcode == TEXT
    finally:
        one.close()


async def test_a_zip_bomb_is_not_inflated(running: InProcessService) -> None:
    assert not await inflates(running)


async def test_with_compression_it_would_be(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.service._server.config.ws_per_message_deflate = True
        assert await inflates(running)
