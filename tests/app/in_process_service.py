"""The real application, store and sockets over a scripted engine, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET
from socket import socket as TcpSocket  # noqa: N812 - beside WebSockets, which are called sockets here
from typing import Any, cast

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed

from app.server import address, listen
from app.service import Service, composed, engines_of
from app.settings import Limits, Settings, read_file
from connections.authentication.access import REFRESH_S
from engine.scripted import ScriptedEngine
from sessions.limits.bounds import HELLO_S

Frame = dict[str, Any]


class InProcessService:
    """A running service and its parts."""

    def __init__(
        self, service: Service, engine: ScriptedEngine, url: str, serving: asyncio.Task[None]
    ) -> None:
        self.service = service
        self.engine = engine
        self.url = url
        self.ws_url = f"{url.replace('http', 'ws')}/v1/ws"
        self.serving = serving

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def get(self, path: str, *, method: str = "GET", **more: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body of an HTTP request whose path is sent unchanged; `more`: its headers."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"{name}: {value}" for name, value in ({"Host": host, "Connection": "close"} | more).items()]
        writer.write("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "\r\n"]).encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        status, *lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(status.split()[1]), headers, body

    async def request(self, method: str, path: str, key: str = "", **more: Any) -> httpx.Response:
        """Return the answer to an HTTP request by a client library, to which `more` goes."""
        headers = more.pop("headers", {}) | ({"Authorization": f"Bearer {key}"} if key else {})
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60) as client:
            return await client.request(method, path, **more)

    async def small_buffer_socket(self) -> TcpSocket:
        """Open a TCP connection with a small receive buffer in the kernel."""
        opened = TcpSocket()
        opened.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", self.port))
        return opened

    @asynccontextmanager
    async def socket(self, hello: Frame | None = None, **options: Any) -> AsyncIterator[Socket]:
        """Open a connection that said hello and read `ready`. Unread frames delay neither side's close."""
        async with open_socket(self.ws_url, **{"max_queue": None} | options) as opened:
            socket = Socket(opened)
            await socket.send(type="hello", **(hello or {}))
            socket.ready = await socket.next("ready")
            yield socket


class Socket:
    """A client that sees every frame as it is."""

    def __init__(self, opened: ClientConnection) -> None:
        self.opened = opened
        self.ready: Frame = {}

    async def send(self, **frame: Any) -> None:
        await self.opened.send(json.dumps(frame))

    async def next(self, kind: str | None = None) -> Frame:
        """Return the next frame, or the next one of a type."""
        while True:
            frame: Frame = json.loads(await self.opened.recv())
            if kind in (None, frame["type"]):
                return frame

    async def ask(self, **frame: Any) -> Frame:
        """Send a frame; return the next one that comes."""
        await self.send(**frame)
        return await self.next()

    async def until(self, kind: str) -> list[Frame]:
        """Return all frames up to and with the first one of a type."""
        frames = [await self.next()]
        while frames[-1]["type"] != kind:
            frames.append(await self.next())
        return frames

    async def closed(self) -> tuple[int, str]:
        """Read to the end; return the close code and the reason."""
        with suppress(ConnectionClosed):
            while True:
                await self.opened.recv()
        return self.opened.close_code or 0, self.opened.close_reason or ""


def settings_with(**given: Any) -> Settings:
    """Settings, without their checks. Limits are given by their own names; `config` adds the limits and tables of a file."""
    limits = {name: given.pop(name) for name in Limits.__struct_fields__ if name in given}
    if (config := given.get("config")) is not None:
        named, tables = read_file(Path(config))
        limits = named.get("limits", {}) | limits
        given = {"tables": tables, "limits_file": config} | given
    return Settings(limits=msgspec.convert(limits, Limits, strict=False), **given)


@asynccontextmanager
async def serving(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    hello_s: float = HELLO_S,
    refresh_s: float = REFRESH_S,
    **settings: Any,
) -> AsyncIterator[InProcessService]:
    """Run a service on a free port. Nothing of it is left after the block."""
    defaults: dict[str, Any] = {
        "data_dir": str(folder),
        "drain_timeout": 0.0,
        "titles": "words",
        "speech": "off",
        "chars_per_s": 0.0,  # nobody reads along
    }
    chosen = settings_with(**defaults | settings)
    engine = engine or ScriptedEngine()
    with listen("127.0.0.1", 0) as listener:
        async with composed(chosen, engine, hello_s=hello_s, refresh_s=refresh_s) as service:
            task = asyncio.create_task(service.run(listener))
            try:
                yield InProcessService(
                    service, engine, address(listener, scheme=service._server.scheme), task
                )
            finally:
                service.stop()
                await task


@asynccontextmanager
async def serving_tables(folder: Path, text: str, **settings: Any) -> AsyncIterator[InProcessService]:
    """Run a service over the models of a settings' file."""
    file = folder / "midstream.toml"
    file.write_text(text)
    engine = engines_of(settings_with(config=str(file), **settings))
    async with (
        engine.running(),
        serving(folder / "service", cast("ScriptedEngine", engine), config=str(file), **settings) as running,
    ):
        yield running
