"""Fixtures for every floor: a real store, a real server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from sessions.embedded import embedded_store
from sessions.servers import connect
from tests.server_process import ServerProcess, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server with the demo model, shared by tests that leave it as it is. Use a `client_id` of your own."""
    with serving(tmp_path_factory.mktemp("server")) as shared:
        yield shared


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server that the test may stop, kill and restart."""
    with serving(tmp_path) as own:
        yield own


@pytest.fixture
def client_id() -> str:
    """An id that no other test has."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
async def store_url(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of an embedded store of the test's own."""
    async with embedded_store(tmp_path) as url:
        yield url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Redis]:
    """A client of the test's own store."""
    async with connect(store_url) as client:
        yield client
