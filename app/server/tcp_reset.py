"""Ends a connection in a way that the peer can't delay."""

from __future__ import annotations

import socket
import struct
from asyncio import Transport
from contextlib import suppress

_NO_LINGER = struct.pack("ii", 1, 0)


def reset(transport: Transport) -> None:
    """End a connection by a reset. Without it the kernel would keep unread bytes for minutes."""
    opened: socket.socket | None = transport.get_extra_info("socket")
    if opened is not None:
        with suppress(OSError, ValueError):  # it is closed already; of uvloop's then it has no descriptor
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
