"""The example of the page about endpoints, as it stands there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.app.in_process_service import serving
from tests.docs.documents import ROOT, snippets

ENDPOINTS = ROOT / "docs" / "endpoints.md"


async def test_a_response_and_one_that_follows_it(tmp_path: Path) -> None:
    (code,) = snippets(ENDPOINTS, "python")
    async with serving(tmp_path) as running:
        running.engine.script("Good day.")
        running.engine.script("It goes on.")
        here = code.replace("http://127.0.0.1:8000", running.url)
        ran = await asyncio.create_subprocess_exec(sys.executable, "-c", here, stdout=asyncio.subprocess.PIPE)
        output, _ = await ran.communicate()
        assert (ran.returncode, output.decode()) == (0, "Good day.\nIt goes on.")
        roles = [message.role for message in running.engine.requests[-1].messages]
    assert roles == ["user", "assistant", "user"]
