"""Stock clients of `/v1/realtime`, unchanged, against a real server with the demo model: two turns, a cancel, the history."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.scripted import Call, ScriptedEngine
from tests.app.in_process_service import serving
from tests.clients.conftest import Runner
from tests.clients.scripts import Lines

ELEVEN = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
OWN = (pytest.mark.clients, pytest.mark.timeout(900))  # an environment of its own, made at the first run


@pytest.fixture(
    scope="module",
    params=[
        "openai_realtime.py",
        pytest.param("node_realtime.mjs", marks=OWN),  # opens wss alone
        pytest.param("agents_two_turns.py", marks=OWN),
        pytest.param("node_agents.mjs", marks=OWN),
        pytest.param("livekit_two_turns.py", marks=OWN),
    ],
)
def output(request: pytest.FixtureRequest, run_script: Runner) -> Lines:
    if request.param != "node_realtime.mjs":
        return run_script(request.param, request.getfixturevalue("server").url)
    authority = request.getfixturevalue("authority")
    return run_script(
        request.param, request.getfixturevalue("tls_server").url, NODE_EXTRA_CA_CERTS=str(authority)
    )


def test_the_second_turn_knows_the_first(output: Lines) -> None:
    assert output["first"]["text"]
    assert "Ada" in output["again"]["text"]


def test_a_cancel_ends_the_reply(output: Lines) -> None:
    cancelled = output["cancelled"]
    assert cancelled["text"].startswith(ELEVEN)
    assert " 490," not in cancelled["text"]
    assert cancelled.get("status", "cancelled") == "cancelled"


def test_the_history_is_what_was_seen(output: Lines) -> None:
    seen = output["cancelled"]["text"]
    if "kept" in output["cancelled"]:
        assert output["cancelled"]["kept"] == seen
        return
    items = [(role, text) for role, text in output["history"]["items"] if role != "system"]
    assert items == [
        ("user", "My name is Ada."),
        ("assistant", output["first"]["text"]),
        ("user", "Count from 1 to 500."),
        ("assistant", seen),
        ("user", "What is my name?"),
        ("assistant", output["again"]["text"]),
    ]


async def test_a_tool_is_called_and_its_output_is_read(run_script: Runner, tmp_path: Path) -> None:
    """Each event is checked by the client's own types."""
    async with serving(tmp_path, engine := ScriptedEngine()) as running:
        engine.script(["I look.", Call("get_weather", '{"city": "Bern"}')])
        engine.script("It rains.")
        did = await asyncio.to_thread(run_script, "openai_realtime_tools.py", running.url)
    assert did["called"]["arguments"] == {"city": "Bern"}
    assert (did["called"]["name"], did["called"]["streamed"]) == ("get_weather", True)
    assert (did["answered"]["status"], did["answered"]["kinds"]) == ("completed", ["message"])
    assert [request.spec.tool_choice for request in engine.requests] == ["required", "auto"]
    assert engine.requests[1].messages[-1].content == "Rain, 7 degrees."
