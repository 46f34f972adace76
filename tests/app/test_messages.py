"""Anthropic's endpoint, as its clients see it over HTTP: replies, counts, refusals, keys, and clients that leave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from connections.api import replies
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO: dict[str, Any] = {
    "model": "midstream-demo",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Hello!"}],
}


def client_of(running: InProcessService) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.url, headers={"anthropic-version": "2023-06-01"})


@pytest.fixture
async def client(running: InProcessService) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(running) as made:
        yield made


async def test_a_stream_that_waits_long_says_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "PING_S", 0.01)
    engine = ScriptedEngine(by_hand=True)
    async with (
        serving(tmp_path, engine) as running,
        client_of(running) as client,
        client.stream("POST", MESSAGES, json=HELLO | {"stream": True}) as answer,
    ):
        assert await anext(answer.aiter_lines()) == "event: ping"


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "gone"}, 404, "not_found_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "x" * 5_000_000}]}, 413, "request_too_large"),
    ],
)
async def test_refusals_have_anthropics_shape(
    client: httpx.AsyncClient, fields: dict[str, Any], status: int, kind: str
) -> None:
    answer = await client.post(MESSAGES, json=HELLO | fields)
    reported = answer.json()
    assert (answer.status_code, reported["type"], reported["error"]["type"]) == (status, "error", kind)
    assert reported["request_id"] == answer.headers["request-id"]


async def test_an_engine_that_is_gone_is_no_fault_of_the_client(
    client: httpx.AsyncClient, running: InProcessService
) -> None:
    running.engine.fail()
    answer = await client.post(MESSAGES, json=HELLO)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "api_error")


@pytest.mark.parametrize("path", [MESSAGES, "/v1/messages/batches"])
async def test_each_refusal_at_these_paths_has_anthropics_shape_whatever_the_client_sends(
    running: InProcessService, path: str
) -> None:
    bare: dict[str, str] = {}
    for headers in (bare, {"Host": "rebound.example"}, {"Origin": "https://evil.example"}):
        for method in ("GET", "POST", "PUT"):
            status, shown, body = await running.get(path, method=method, **headers)
            reported = json.loads(body)
            assert (status >= 400, reported["type"]) == (True, "error")
            assert reported["request_id"].lower() == shown["request-id"]
