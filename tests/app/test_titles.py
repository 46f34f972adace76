"""The model writes the title of a new conversation after its first reply, and all attached clients get it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from structlog.testing import capture_logs

from tests.app.in_process_service import InProcessService, serving
from tests.app.test_frames import send_and_wait

TITLED = {"features": ["titles"]}


@pytest_asyncio.fixture
async def titling(tmp_path: Path) -> AsyncIterator[InProcessService]:
    """A service whose model writes titles."""
    async with serving(tmp_path, titles="model") as running:
        yield running


async def test_a_title_that_fails_is_logged(titling: InProcessService) -> None:
    titling.engine.script(["They grow slowly."])
    titling.engine.script("word " * 1_000)
    titling.engine._pace_s = 0.05
    with capture_logs() as log:
        async with titling.socket(TITLED) as socket:
            await send_and_wait(socket, "How do oaks grow?")
            while len(titling.engine.requests) < 2:
                await socket.ask(type="ping")
            titling.engine.fail("It broke.")
            while not (lines := [line for line in log if line["event"] == "no title"]):
                await socket.ask(type="ping")
    assert "It broke." in lines[0]["error"]
