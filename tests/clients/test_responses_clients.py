"""Stock clients of `/v1/responses` and `/v1/conversations`, unchanged, against a real server with the demo model.

`openai` for Python is in `tests/app`.
"""

from __future__ import annotations

import pytest

from tests.clients.conftest import Runner
from tests.clients.turn_log import ends_of_turns
from tests.server_process import ServerProcess

# An environment of its own, made at the first run.
pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def test_responses_of_the_stock_client_for_node(run_script: Runner, server: ServerProcess) -> None:
    logged = server.log.stat().st_size
    output = run_script("node_responses.mjs", server.url)
    assert output["whole"]["text"] == output["whole"]["again"] != ""
    assert "Ada" in output["stream"]["text"]
    assert output["socket"]["text"] == output["stream"]["text"]
    assert " 20," in output["left"]["text"]
    with ends_of_turns(server, since=logged) as ends:
        left = next(
            end for end in ends if end["cause"] is not None
        )  # the endpoint stops what its reader leaves
        assert (left["reason"], left["steps_after"] <= 1) == ("cancelled", True)


def test_a_session_of_the_agents_sdk_is_kept_by_the_conversations_api(
    run_script: Runner, server: ServerProcess
) -> None:
    output = run_script("agents_conversations.py", server.url)
    assert "Ada" in output["again"]["text"]
    items = output["items"]["items"]
    assert [role for role, _ in items] == ["user", "assistant"] * 2
    assert [items[0], items[-1]] == [["user", "My name is Ada."], ["assistant", output["again"]["text"]]]
    assert (output["popped"]["item"], output["left"]["items"]) == (items[-1], items[:-1])
    assert "cleared" in output
