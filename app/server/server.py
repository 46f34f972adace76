"""uvicorn as this service runs it: signals drain first, and no setting of its own is left to chance."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

from app.server.http_protocol import HttpProtocol, Patience
from app.server.tls import RenewableContext
from app.server.websocket import BoundedState, Protocol
from app.setting_values import SettingsError
from connections.limits.bounds import Bounds
from connections.limits.limits import MAX_FRAME_BYTES
from connections.limits.loop_turns import LoopTurns

HEARTBEAT_S = 20.0
SIPS = 2
"""What is parsed in one turn of the event loop: of many small frames, or of handshakes, a millisecond's work."""
TICK_S = 1.0
"""How old the `date` header of an answer may be."""
SEND_BUFFER_BYTES = 64 * 1024
"""The kernel's, of each connection: text there counts as handed to its reader, so it is not to be megabytes."""
RECEIVE_BUFFER_BYTES = 64 * 1024
"""Likewise: what is sent ahead waits there, and is read at once."""
UNACKNOWLEDGED_MS = int(2 * HEARTBEAT_S * 1000)
"""How long the kernel keeps what a peer takes nothing of (RFC 5482): the last resort for answers without a heartbeat."""


class Server(uvicorn.Server):
    """A server whose signals belong to the service: uvicorn would cut every socket at once."""

    def __init__(self, config: uvicorn.Config, *, patience: Patience, bounds: Bounds) -> None:
        super().__init__(config)
        self._turns = LoopTurns(SIPS)
        self.server_state = BoundedState(bounds, self._turns)
        self._bounds = bounds
        self._patience = patience
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Lets `serve` come to its end."""
        self.should_exit = True
        self._ending.set()

    def reread(self) -> None:
        """Reads the certificate again, where there is one."""
        if isinstance(self.config.ssl, RenewableContext):
            self.config.ssl.reread()

    @property
    def scheme(self) -> str:
        """Of its pages' URLs."""
        return "https" if self.config.is_ssl else "http"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves on the sockets; uvicorn's own would give a TLS handshake a minute, and a request for ever."""
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=one,
                ssl=tls,
                ssl_handshake_timeout=self._patience.request_s if tls else None,
                backlog=self.config.backlog,
            )
            for one in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        """Makes the `date` header anew now and then, and wakes for the end; uvicorn's own looks for it ten times a second."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    def _protocol(self) -> asyncio.Protocol:
        return HttpProtocol(
            patience=self._patience,
            bounds=self._bounds,
            turns=self._turns,
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )


def server(
    app: ASGIApp, *, patience: Patience, bounds: Bounds | None = None, tls: ssl.SSLContext | None = None
) -> Server:
    """A server for the application; it serves on sockets given to `serve`. `bounds` counts what they did."""
    config = uvicorn.Config(
        app,
        ws=Protocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=HEARTBEAT_S,
        ws_ping_timeout=HEARTBEAT_S,
        ws_per_message_deflate=False,  # 34 KB a connection, and a door for zip bombs
        ssl_context_factory=None if tls is None else lambda *_: tls,
        proxy_headers=False,  # whose word counts is the gate's business
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return Server(config, patience=patience, bounds=bounds or Bounds())


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError where the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"Can't listen on {host}:{port}: {error.strerror}. Choose another with --port."
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # accepted sockets inherit it
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvloop does by itself
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    listener.setblocking(False)
    return listener


def address(listener: socket.socket, *, scheme: str = "http") -> str:
    """The URL of the page, as this machine reaches it."""
    host, port = listener.getsockname()[:2]
    shown = (
        "127.0.0.1"
        if host == "0.0.0.0"
        else "[::1]"
        if host == "::"
        else f"[{host}]"
        if ":" in host
        else host
    )
    return f"{scheme}://{shown}:{port}"
