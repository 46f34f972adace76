"""AG-UI's door as its clients meet it over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.scripted.engine import ScriptedEngine
from engine.scripted.steps import Call, Thought
from tests.app.in_process import Running, serving

RUN = "/v1/ag-ui"
HELLO: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "state": {},
    "messages": [{"id": "1", "role": "user", "content": "Hello!"}],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}


def client_of(running: Running) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.url)


@pytest.fixture
async def client(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(running) as made:
        yield made


async def test_a_run_is_told_as_events(client: httpx.AsyncClient, running: Running) -> None:
    running.engine.script([Thought("Hm."), "Let me", " look.", Call("look", '{"at":1}', "c_1")])
    answer = await client.post(RUN, json=HELLO | {"tools": [{"name": "look", "description": "Looks."}]})
    told = [json.loads(one.removeprefix("data: ")) for one in answer.text.split("\n\n") if one]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [one["type"] for one in told if "delta" not in one] == [
        "RUN_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ]
    assert told[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c_1"]}
    assert told[-1]["usage"][0]["model"] == "midstream-demo"


async def test_a_run_that_fails_says_why(client: httpx.AsyncClient, running: Running) -> None:
    running.engine.fail()
    answer = await client.post(RUN, json=HELLO)
    assert (answer.status_code, answer.json()["type"]) == (503, "RUN_ERROR")
    assert answer.json()["code"] == "engine_unavailable"
    assert answer.headers["retry-after"]


async def test_an_engine_that_dies_ends_the_run_in_an_error(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as client:
        async with client.stream("POST", RUN, json=HELLO) as answer:
            while not engine.requests:
                await running.get("/healthz")
            engine.step()
            lines = [json.loads(line.removeprefix("data: ")) async for line in _until_text(answer, engine)]
        assert lines[-1]["type"] == "RUN_ERROR"
        assert [one["type"] for one in lines[-2:-1]] == ["TEXT_MESSAGE_END"]


async def _until_text(answer: httpx.Response, engine: ScriptedEngine) -> AsyncIterator[str]:
    """All events; the engine dies behind the first text."""
    async for line in answer.aiter_lines():
        if "TEXT_MESSAGE_CONTENT" in line:
            engine.die()
        if line.startswith("data: "):
            yield line


async def test_a_client_that_aborts_stops_the_engine_within_a_step(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as client:
        async with client.stream("POST", RUN, json=HELLO) as answer:
            while not engine.requests:
                await running.get("/healthz")
            engine.step()
            async for line in answer.aiter_lines():
                if "TEXT_MESSAGE_CONTENT" in line:
                    break
        while not engine.statistics().cancels:
            await running.get("/healthz")
    assert (engine.statistics().steps, engine.statistics().steps_after_cancel) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"forwardedProps": {"model": "gone"}}, 404, "model_not_found"),
        ({"messages": []}, 400, "invalid_value"),
        ({"runId": 5}, 400, "invalid_type"),
    ],
)
async def test_a_refusal_is_the_event_that_would_have_ended_the_run(
    client: httpx.AsyncClient, fields: dict[str, Any], status: int, code: str
) -> None:
    answer = await client.post(RUN, json=HELLO | fields)
    assert (answer.status_code, answer.json()["type"], answer.json()["code"]) == (status, "RUN_ERROR", code)


async def test_what_is_passed_over_is_named(client: httpx.AsyncClient) -> None:
    answer = await client.post(RUN, json=HELLO | {"resume": [{"interruptId": "i", "status": "resolved"}]})
    assert (answer.status_code, answer.headers["x-midstream-ignored"]) == (200, "resume")


async def test_pages_that_may_not_ask_are_told_so_in_this_shape(client: httpx.AsyncClient) -> None:
    answer = await client.post(RUN, json=HELLO, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
