"""What coding agents sent when `transcripts.py` recorded them, sent again: the programs themselves need npm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from tests.clients.tools.coding_agents import AGENTS, CALLING, GUIDE
from tests.clients.tools.scripted_server import ARGUMENTS, NOTHING
from tests.clients.tools.transcripts import HERE, Recorded, expanded, reduced, transcript
from tests.server_process import ServerProcess

Answered = tuple[list[Any], str]


@pytest.mark.parametrize("agent", AGENTS)
def test_requests_of_a_greeting_are_answered_in_words(agent: str, scripted: ServerProcess) -> None:
    assert ([], NOTHING) in answers(scripted, agent, "words")


@pytest.mark.parametrize(("agent", "turn"), CALLING)
def test_requests_of_a_tool_round_get_a_call_and_then_its_result(
    agent: str, turn: str, scripted: ServerProcess
) -> None:
    tool, result = AGENTS[agent].calls[turn]
    *_, (called, _), (no_calls, text) = answers(scripted, agent, turn)
    assert called == [[tool, ARGUMENTS[tool]]]
    assert no_calls == []
    assert result in text


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_not_followed_is_named_in_a_header(agent: str, scripted: ServerProcess) -> None:
    ignored = {answer.headers.get("X-Midstream-Ignored") for answer in responses(scripted, agent, "words")}
    assert ignored == {AGENTS[agent].ignored}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_transcript_is_of_the_version_that_is_run(agent: str) -> None:
    with (HERE / "transcripts" / f"{agent}.jsonl").open() as file:
        head = json.loads(file.readline())
    pinned = json.loads((HERE / f"{agent}.json").read_text())["dependencies"]
    assert pinned == {head["package"]: head["version"]}
    assert f"| {head['version']} |" in GUIDE.read_text()


@pytest.mark.parametrize("agent", AGENTS)
def test_a_transcript_has_no_prose_but_ours(agent: str) -> None:
    lines = (HERE / "transcripts" / f"{agent}.jsonl").read_text().splitlines()
    bodies = [json.loads(line)["body"] for line in lines[1:]]
    assert [reduced(expanded(body)) for body in bodies] == bodies


def responses(server: ServerProcess, agent: str, turn: str) -> list[httpx.Response]:
    """What the requests of a turn get when they are sent again."""
    with httpx.Client(
        base_url=server.url, headers={"authorization": f"Bearer {agent}"}, timeout=60
    ) as client:
        return [_sent(client, one) for one in transcript(agent) if one["turn"] == turn]


def answers(server: ServerProcess, agent: str, turn: str) -> list[Answered]:
    """What each streamed reply of a turn called, and its text."""
    streams = [
        answer
        for answer in responses(server, agent, turn)
        if answer.headers["content-type"].startswith("text/event-stream")
    ]
    return [_read(_events(answer)) for answer in streams]


def _sent(client: httpx.Client, one: Recorded) -> httpx.Response:
    answer = client.request(one["method"], one["path"], headers=one["headers"], json=one["body"])
    assert answer.status_code == one["status"], answer.text
    return answer


def _events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def _read(events: Sequence[dict[str, Any]]) -> Answered:
    calls, texts = [], []
    for kind, *found in _parts(events):
        (calls if kind == "call" else texts).append(found)
    return [[name, json.loads(arguments)] for name, arguments in calls], "".join(text for (text,) in texts)


def _parts(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield calls and pieces of text, whichever API the events are of."""
    for event in events:
        match event:
            case {
                "type": "response.output_item.done",
                "item": {"type": "function_call", "name": name, "arguments": arguments},
            }:
                yield "call", name, arguments
            case {"type": "response.output_text.delta", "delta": text}:
                yield "text", text
            case {
                "choices": [{"delta": {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}}]
            }:
                yield "call", name, arguments
            case {"choices": [{"delta": {"content": str() as text}}]}:
                yield "text", text
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
                (arguments,) = (
                    one["delta"]["partial_json"]
                    for one in events
                    if one["type"] == "content_block_delta" and one["delta"]["type"] == "input_json_delta"
                )
                yield "call", name, arguments
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                yield "text", text
