"""AG-UI's own client, unchanged, against a gateway whose engine calls what it is shown."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Runner
from tests.clients.scripts import Lines
from tests.clients.tools import scripted_server
from tests.clients.tools.test_tools_and_types import ANSWER, CALLED
from tests.clients.turn_log import ends_of_turns, stopped
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def test_the_agent_of_ag_ui_calls_answers_aborts_and_is_refused(
    run_script: Runner, scripted: ServerProcess
) -> None:
    output = run_and_leave(run_script, scripted, "agui_run.mjs")
    assert output["tool"] == {"called": CALLED, "text": ANSWER}
    roles = ["user", "reasoning", "assistant", "tool", "assistant"]
    assert output["events"] == {"last": "RUN_FINISHED", "roles": roles}
    assert (output["refused"]["status"], output["refused"]["type"]) == (404, "RUN_ERROR")
    assert "another" in output["refused"]["why"]


def test_a_page_of_copilotkit_has_its_tool_called_and_stops_the_model(
    run_script: Runner, scripted: ServerProcess
) -> None:
    output = run_and_leave(run_script, scripted, "copilotkit_run.mjs", COPILOTKIT_TELEMETRY_DISABLED="true")
    roles = ["user", "assistant", "tool", "assistant"]
    assert output["tool"] == {"called": CALLED, "text": ANSWER, "roles": roles}


def run_and_leave(run_script: Runner, server: ServerProcess, script: str, **environ: str) -> Lines:
    """Run a script that leaves a count: the model stops."""
    logged = server.log.stat().st_size
    output = run_script(script, server.url, **environ)
    with ends_of_turns(server, since=logged) as ends:
        assert stopped(ends)["steps_after"] <= 1
    assert "20" in output["left"]["text"]
    assert output["left"]["text"] != scripted_server.COUNT
    return output
