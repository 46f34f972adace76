"""A service inside the test."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog
from openai import AsyncOpenAI

from app import logs
from app.keys import add_key
from connections.authentication.api_keys import Kind
from connections.protocol.base import AUDIT_LOGGER
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import client_of


@pytest.fixture
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo a test's logging setup. Loggers are not cached meanwhile: a cached one would keep the setup for later tests."""
    configure = structlog.configure
    monkeypatch.setattr(
        structlog,
        "configure",
        lambda **options: configure(**options | {"cache_logger_on_first_use": False}),
    )
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    for named in (*logs.OURS, *logs.QUOTING, AUDIT_LOGGER):
        logging.getLogger(named).setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """An empty file of keys."""
    path = tmp_path / "keys"
    path.touch()
    return path


@pytest.fixture
def operator(keys: Path) -> str:
    """An operator's key in the file."""
    return add_key(keys, "olga", kind=Kind.ADMIN)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service over a scripted engine that answers at once."""
    async with serving(tmp_path) as service:
        yield service


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client of the service `running`."""
    async with client_of(running) as client:
        yield client
