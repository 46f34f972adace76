"""What stock clients do with tools and with types, unchanged, against real gateways.

Their loops of calls and results run against a scripted engine that calls what it is shown: each step is known. What is
`held` to a schema comes from the demo model, whose grammar keeps it to that whatever the model would have written.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.clients.conftest import Runner
from tests.clients.scripts import Lines
from tests.clients.tools import scripted_server
from tests.server_process import ServerProcess, serving

CALLED = [["get_weather", {"city": "Oslo"}]]
ANSWER = "The weather in Oslo: rain, 7 °C."
OWN = (pytest.mark.clients, pytest.mark.timeout(900))  # an environment of its own, made at the first run
TWICE = ("tool", "tool by chat", "streamed", "streamed by chat", "held", "held by chat")
DOES = {
    "openai_tools.py": ("tool", "streamed", "held"),
    "langchain_responses.py": ("tool", "streamed", "turns", "held"),
    "pydanticai_tools.py": (*TWICE, "turns", "person", "prompted"),
    "instructor_tools.py": ("person", "prompted", "held"),
    "langgraph_tools.py": ("tool", "streamed", "person", "prompted", "held"),
    "llamaindex_tools.py": ("tool", "streamed", "person", "held"),
    "agents_tools.py": (*TWICE, "turns", "handoff"),
    "openaiagents_responses.mjs": ("tool", "streamed", "turns", "handoff", "held"),
    "aisdk_tools.mjs": ("tool", "streamed", "person", "held"),
    "aisdk_responses.mjs": ("tool", "streamed", "turns", "held"),
    "agentframework_responses.py": ("tool", "streamed", "turns"),
    "anthropic_tools.py": ("tool", "tool by hand", "streamed", "thought", "held"),
    "anthropicnode_runner.mjs": ("tool", "streamed"),
}
"""What each script says that it did: `prompted` is JSON that no schema holds."""


class Visits:
    """What each client said and did, run once."""

    def __init__(self, run_script: Runner, scripted: ServerProcess, demo: ServerProcess) -> None:
        self._run = partial(run_script, JSON_BASE_URL=f"{demo.url}/v1")
        self._url = scripted.url
        self._outputs: dict[str, Lines] = {}

    def output(self, script: str) -> Lines:
        if script not in self._outputs:
            self._outputs[script] = self._run(f"tools/{script}", self._url)
        return self._outputs[script]


@pytest.fixture(scope="module")
def visits(run_script: Runner, scripted: ServerProcess, server: ServerProcess) -> Visits:
    return Visits(run_script, scripted, server)


def clients(*kinds: str) -> pytest.MarkDecorator:
    """The scripts that do one of these things, with each of them that they do."""
    cases = [(script, kind) for script, does in DOES.items() for kind in kinds if kind in does]
    marks = [() if script == "openai_tools.py" else OWN for script, _ in cases]
    return pytest.mark.parametrize(
        ("script", "kind"),
        [pytest.param(*case, marks=own) for case, own in zip(cases, marks, strict=True)],
    )


@clients("tool", "tool by chat", "tool by hand", "streamed", "streamed by chat")
def test_a_tool_is_called_and_its_result_told(visits: Visits, script: str, kind: str) -> None:
    assert visits.output(script)[kind] == {"called": CALLED, "text": ANSWER}


@clients("turns")
def test_ten_turns_are_answered_whichever_way_they_are_gone_on_with(
    visits: Visits, script: str, kind: str
) -> None:
    assert visits.output(script)[kind] == {"texts": [ANSWER], "count": 20}


@clients("handoff")
def test_an_agent_hands_over_to_another(visits: Visits, script: str, kind: str) -> None:
    called = [["transfer_to_forecaster", {}], *CALLED]
    assert visits.output(script)[kind] == {"called": called, "text": ANSWER, "by": "forecaster"}


@clients("person", "prompted")
def test_a_type_comes_by_a_tool_or_as_json(visits: Visits, script: str, kind: str) -> None:
    assert visits.output(script)[kind] == {"is": scripted_server.PERSON}


@clients("held", "held by chat")
def test_a_model_is_held_to_a_type(visits: Visits, script: str, kind: str) -> None:
    person = visits.output(script)[kind]["is"]
    assert isinstance(person["name"], str)
    assert isinstance(person["age"], int)
    assert set(person) == {"name", "age"}


@clients("thought")
def test_what_was_thought_comes_before_the_call(visits: Visits, script: str, kind: str) -> None:
    assert visits.output(script)[kind] == {"blocks": ["thinking", "text", "tool_use"], "text": "Who knows?"}


FEW_ROUNDS = (*scripted_server.COMMAND, '{"max_tool_rounds": 3}')


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("unsupported", ["ignore", "refuse"])
def test_a_loop_of_calls_ends_in_words_or_is_refused(
    run_script: Runner, tmp_path: Path, unsupported: str
) -> None:
    with serving(tmp_path, {"MIDSTREAM_UNSUPPORTED_TOOLS": unsupported}, command=FEW_ROUNDS) as server:
        loop = run_script("tools/pydanticai_loop.py", server.url)["loop"]
    assert loop["looked"] == 3
    refused = "3 replies to the last message of the user did, and this server allows no more"
    assert refused in loop["refused"] if unsupported == "refuse" else loop["text"] == ANSWER
