"""Stock clients of `/v1/chat/completions` and `/v1/messages`, unchanged, against a real server with the demo model."""

from __future__ import annotations

import pytest

from app.settings import DEMO_MODEL
from tests.clients.conftest import Runner
from tests.clients.scripts import Lines
from tests.clients.turn_log import ends_of_turns, stopped
from tests.server_process import ServerProcess

ELEVEN = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
OWN = (pytest.mark.clients, pytest.mark.timeout(900))  # an environment of its own, made at the first run


class Visit:
    """What a client did, and how much the server had logged before it came."""

    def __init__(self, output: Lines, logged_before: int) -> None:
        self.output = output
        self.logged_before = logged_before


@pytest.fixture(
    scope="module",
    params=[
        "openai_chat.py",
        pytest.param("node_chat.mjs", marks=OWN),
        pytest.param("langchain_chat.py", marks=OWN),
        pytest.param("litellm_chat.py", marks=OWN),
        pytest.param("litellmproxy_chat.py", marks=OWN),
        pytest.param("anthropic_messages.py", marks=OWN),
    ],
)
def visit(request: pytest.FixtureRequest, run_script: Runner, server: ServerProcess) -> Visit:
    logged = server.log.stat().st_size
    return Visit(run_script(request.param, server.url), logged)


def test_a_whole_reply_comes_with_its_totals(visit: Visit) -> None:
    whole = visit.output["whole"]
    assert whole["text"] == ELEVEN
    assert whole["tokens"] >= 22


def test_a_stream_says_the_same(visit: Visit) -> None:
    assert visit.output["stream"] == visit.output["whole"]


def test_leaving_stops_the_model(visit: Visit, server: ServerProcess) -> None:
    assert visit.output["left"]["text"].startswith(ELEVEN)
    with ends_of_turns(server, since=visit.logged_before) as ends:
        assert stopped(ends)["steps_after"] <= 1


def test_another_model_is_refused(visit: Visit) -> None:
    assert "another" in visit.output["refused"]["why"]
    if "models" in visit.output:  # LangChain and LiteLLM do not list them
        assert visit.output["models"]["ids"] == ["midstream-demo", "midstream-translator"]


def test_anthropics_client_is_told_what_ended_the_reply_and_what_a_prompt_takes(visit: Visit) -> None:
    if "count" not in visit.output:
        return
    assert visit.output["stopped"]["by"] == ["stop_sequence", " 12"]
    counted, taken = visit.output["count"]["tokens"]
    assert counted == taken > 0
    assert visit.output["refused"]["type"] == "not_found_error"
    assert visit.output["refused"]["id"].startswith("req_")
    assert visit.output["unserved"]["type"] == "not_found_error"
    assert "/v1/messages/count_tokens" in visit.output["unserved"]["why"]
    assert visit.output["unserved"]["id"].startswith("req_")


def test_responses_through_a_proxy_take_no_deployment_from_others(visit: Visit) -> None:
    if "responded" not in visit.output:  # LiteLLM's proxy alone
        return
    assert visit.output["responded"]["text"]
    assert visit.output["responded_in_parts"]["text"]
    assert visit.output["responding_left"]["text"].startswith(ELEVEN)
    assert "temperature" in visit.output["not_responded"]["why"]
    kinds = ("responded", "responded_in_parts", "responding_left", "not_responded")
    assert all(visit.output[kind]["chats"] for kind in kinds)


@pytest.mark.clients
@pytest.mark.timeout(900)
def test_a_load_of_guidellm_is_answered_token_for_token(run_script: Runner, server: ServerProcess) -> None:
    load = run_script("guidellm_load.py", server.url, GUIDELLM_TOKENIZER=str(DEMO_MODEL))["load"]
    assert load["requests"] == {"successful": 24, "errored": 0, "incomplete": 0, "total": 24}
    assert load["at_once"] > 1
    assert load["tokens"] == [32, 32]  # it wants so many of each reply, whatever that would have been
