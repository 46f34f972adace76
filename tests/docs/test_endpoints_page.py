"""What docs/endpoints.md says in tables about other vendors' APIs is what the service does, and its examples run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from connections.api.anthropic import endpoint as anthropic
from connections.api.replies import _FINISH_REASONS
from connections.api.responses.encoder import _INCOMPLETE_REASONS
from sessions.events import Reason
from tests.app.in_process_service import serving
from tests.docs.documents import ROOT, run_program, snippets
from tests.server_process import ServerProcess
from tests.transcripts.transcript import FOLDER, read

ENDPOINTS = ROOT / "docs" / "endpoints.md"
PAGE = ENDPOINTS.read_text()
(RESPONSES,) = snippets(ENDPOINTS, "python")


def rows(head: str) -> list[list[str]]:
    """The rows of the table that begins so, as the texts of their cells."""
    table = PAGE.partition(f"\n| {head}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_each_end_of_a_reply_has_the_names_that_the_page_says() -> None:
    said = {reason: row[1:] for row in rows("[`done.reason`]") for reason in quoted(row[0])}
    assert said.keys() == {str(reason) for reason in Reason}
    for reason in Reason:
        chat, messages, responses = map(quoted, said[reason])
        assert chat == [_FINISH_REASONS[reason]] if reason in _FINISH_REASONS else not chat
        assert messages[:1] == [anthropic._REASONS[reason]] if reason in anthropic._REASONS else not messages
        early = _INCOMPLETE_REASONS.get(reason)
        assert early is None or early in responses


def test_realtime_events_come_in_the_order_that_the_page_says() -> None:
    said = [name for _, events in rows("After | Events")[2:] for name in quoted(events)]
    said[said.index("….done")] = "response.function_call_arguments.done"
    found = [
        event["type"] for step in read(FOLDER / "realtime" / "tools.yaml").steps for _, event in step.events
    ]
    begin = found.index("response.created")
    assert found[begin : found.index("response.done") + 1] == said


async def test_the_program_prints_a_response_and_one_that_follows_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        running.engine.script("Good day.")
        running.engine.script("It goes on.")
        here = RESPONSES.replace("http://127.0.0.1:8000", running.url)
        assert await run_program(sys.executable, "-c", here) == (0, "Good day.\nIt goes on.")
        roles = [message.role for message in running.engine.requests[-1].messages]
    assert roles == ["user", "assistant", "user"]


def curl_answer(path: str, server: ServerProcess) -> str:
    """What the command for a path is answered."""
    if which("curl") is None:
        pytest.skip("needs curl")
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
