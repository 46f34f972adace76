"""A service for the clients, inside the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.in_process_service import InProcessService, serving


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service over a scripted engine that answers at once."""
    async with serving(tmp_path / "service") as service:
        yield service
