"""Coding agents for terminals, unchanged and with their defaults, against a gateway whose engine calls what it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.environments import HERE, Notify, NotInstallable, node_modules
from tests.clients.tools.coding_agents import AGENTS, CALLING, PROMPTS, Outcome, run_agent
from tests.clients.tools.scripted_server import NOTHING
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

Run = Callable[[str, str], Outcome]


@pytest.fixture
def run(notify: Notify, scripted: ServerProcess, tmp_path: Path) -> Run:
    """Runs an agent in a new home, with a prompt by its name."""

    def run(agent: str, turn: str) -> Outcome:
        try:
            modules = node_modules(notify, HERE / "tools" / f"{agent}.json")
        except NotInstallable as why:
            pytest.skip(f"{agent} could not be installed: {why}")
        return run_agent(AGENTS[agent], modules, scripted.url, tmp_path, PROMPTS[turn])

    return run


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_answers_in_words(run: Run, agent: str) -> None:
    assert run(agent, "words") == Outcome([], NOTHING)


@pytest.mark.parametrize(("agent", "turn"), CALLING)
def test_an_agent_calls_a_tool_and_reports_its_result(run: Run, agent: str, turn: str) -> None:
    tool, result = AGENTS[agent].calls[turn]
    outcome = run(agent, turn)
    assert outcome.calls == [tool]
    assert result in outcome.text
