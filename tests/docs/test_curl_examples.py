"""What the page about endpoints asks with curl is answered as it says."""

from __future__ import annotations

import json
import subprocess
from shutil import which

import pytest

from tests.docs.documents import ROOT, snippets
from tests.server_process import ServerProcess

pytestmark = pytest.mark.skipif(which("curl") is None, reason="needs curl")

ENDPOINTS = ROOT / "docs" / "endpoints.md"


def curl_answer(path: str, server: ServerProcess) -> str:
    """What the command for a path is answered."""
    (command,) = (code for code in snippets(ENDPOINTS, "sh") if f"{path} " in code)
    here = command.replace("http://127.0.0.1:8000", server.url)
    return subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_message_of_anthropics(server: ServerProcess) -> None:
    message = json.loads(curl_answer("/v1/messages", server))
    assert (message["role"], message["stop_reason"]) == ("assistant", "end_turn")
    assert message["content"][0]["text"]


def test_a_run_of_ag_ui(server: ServerProcess) -> None:
    events = curl_answer("/v1/ag-ui", server).strip().split("\n\n")
    assert "RUN_STARTED" in events[0]
    assert "RUN_FINISHED" in events[-1]
