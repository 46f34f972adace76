"""Coding agents for terminals, unchanged and with their defaults, against a gateway whose engine calls what it is shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.clients.environments import NotInstallable, Say, node_modules
from tests.clients.tools.coding_agents import AGENTS, PROMPTS, RESULT, Outcome, run_agent
from tests.clients.tools.scripted_server import NOTHING
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
TOOLS = {"claudecode": "Read", "codex": "command_execution", "opencode": "read"}

Run = Callable[[str], Outcome]


@pytest.fixture(params=AGENTS)
def run(request: pytest.FixtureRequest, say: Say, scripted: ServerProcess, tmp_path: Path) -> Run:
    """Runs an agent in a new home with a prompt."""
    try:
        modules = node_modules(say, HERE / f"{request.param}.json")
    except NotInstallable as why:
        pytest.skip(f"{request.param} could not be installed: {why}")
    return partial(run_agent, AGENTS[request.param], modules, scripted.url, tmp_path)


def test_an_agent_answers_in_words(run: Run) -> None:
    assert run(PROMPTS["words"]) == Outcome([], NOTHING)


def test_an_agent_reads_a_file_and_reports_what_it_says(run: Run, request: pytest.FixtureRequest) -> None:
    outcome = run(PROMPTS["tool"])
    assert outcome.calls == [TOOLS[request.node.callspec.params["run"]]]
    assert RESULT in outcome.text
