"""What the page about doors asks with curl is answered as it says."""

from __future__ import annotations

import json
import subprocess

from tests.docs.papers import ROOT, snippets
from tests.server_process import ServerProcess

DOORS = ROOT / "docs" / "doors.md"


def asked(path: str, server: ServerProcess) -> str:
    """What the command for a path is answered."""
    (command,) = (code for code in snippets(DOORS, "sh") if f"{path} " in code)
    here = command.replace("http://127.0.0.1:8000", server.url)
    return subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_message_of_anthropics(server: ServerProcess) -> None:
    message = json.loads(asked("/v1/messages", server))
    assert (message["role"], message["stop_reason"]) == ("assistant", "end_turn")
    assert message["content"][0]["text"]


def test_a_run_of_ag_ui(server: ServerProcess) -> None:
    events = asked("/v1/ag-ui", server).strip().split("\n\n")
    assert "RUN_STARTED" in events[0]
    assert "RUN_FINISHED" in events[-1]
