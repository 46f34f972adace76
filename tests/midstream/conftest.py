"""A service for the clients, inside the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from pathlib import Path

import pytest

from connections.connection import Connection
from connections.protocol.errors import Close, CloseCode
from tests.app.in_process_service import InProcessService, serving


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service over a scripted engine that answers at once."""
    async with serving(tmp_path / "service") as service:
        yield service


def connections_of(running: InProcessService) -> list[Connection]:
    return list(running.service._lifecycle._manager.connections())


def cut(running: InProcessService, *, but: Container[Connection] = ()) -> None:
    """The server loses its connections, and says so."""
    for connection in connections_of(running):
        if connection not in but:
            connection.shut(Close(CloseCode.DRAIN, "The server stops; reconnect."))
