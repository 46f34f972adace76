"""AG-UI's own client, unchanged, against a gateway whose engine calls what it is shown."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Runner
from tests.clients.tools import scripted_server
from tests.clients.turn_log import ends_of_turns, stopped
from tests.server_process import serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def test_the_agent_of_ag_ui_calls_answers_aborts_and_is_refused(
    run_script: Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("agui")
    with serving(folder, command=scripted_server.COMMAND) as scripted:
        output = run_script("agui_run.mjs", scripted.url)
        with ends_of_turns(scripted, since=0) as ends:
            assert stopped(ends)["steps_after"] <= 1
    assert output["tool"] == {
        "called": [["get_weather", {"city": "Oslo"}]],
        "text": "The weather in Oslo: rain, 7 °C.",
    }
    roles = ["user", "reasoning", "assistant", "tool", "assistant"]
    assert output["events"] == {"last": "RUN_FINISHED", "roles": roles}
    assert "20" in output["left"]["text"]
    assert output["left"]["text"] != scripted_server.COUNT
    assert (output["refused"]["status"], output["refused"]["type"]) == (404, "RUN_ERROR")
    assert "another" in output["refused"]["why"]


def test_a_page_of_copilotkit_has_its_tool_called_and_stops_the_model(
    run_script: Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("copilotkit")
    with serving(folder, command=scripted_server.COMMAND) as scripted:
        output = run_script("copilotkit_run.mjs", scripted.url, COPILOTKIT_TELEMETRY_DISABLED="true")
        with ends_of_turns(scripted, since=0) as ends:
            assert stopped(ends)["steps_after"] <= 1
    assert output["tool"] == {
        "called": [["get_weather", {"city": "Oslo"}]],
        "text": "The weather in Oslo: rain, 7 °C.",
        "roles": ["user", "assistant", "tool", "assistant"],
    }
    assert "20" in output["left"]["text"]
    assert output["left"]["text"] != scripted_server.COUNT
