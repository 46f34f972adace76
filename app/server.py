"""uvicorn as this service runs it: signals drain first, and no setting of its own is left to chance."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from app.settings import SettingsError
from app.websocket import Protocol
from connections.limits import MAX_FRAME_BYTES

HEARTBEAT_S = 20.0
SEND_BUFFER_BYTES = 64 * 1024
"""The kernel's, of each connection: text there counts as handed to its reader, so it is not to be megabytes."""


class Server(uvicorn.Server):
    """A server whose signals belong to the service: uvicorn would cut every socket at once."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield


def server(app: ASGIApp) -> Server:
    """A server for the application; it serves on sockets given to `serve`."""
    return Server(
        uvicorn.Config(
            app,
            ws=Protocol,
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=HEARTBEAT_S,
            ws_ping_timeout=HEARTBEAT_S,
            ws_per_message_deflate=False,  # 34 KB a connection, and a door for zip bombs
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
    )


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
    listener.setblocking(False)
    return listener


def address(listener: socket.socket) -> str:
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
    return f"http://{shown}:{port}"
