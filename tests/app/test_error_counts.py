"""Every error sent to a client is counted by its endpoint and code, so that an operator sees the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from connections.http import MAX_CODES, EndpointName, RefusalCounters
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.store_faults import refusing_writes

CHATS = "/v1/chat/completions"
CHAT = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}


def send(room: str) -> dict[str, Any]:
    return {"type": "send", "client_msg_id": room, "content": "Hello?", "conversation_id": room}


async def error_counts(running: InProcessService) -> dict[str, float]:
    """Return the counts so far, by endpoint and code."""
    _, _, text = await running.get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("midstream_errors_total{")]
    found = {}
    for line in lines:
        labels, _, count = line.removeprefix("midstream_errors_total{").partition("} ")
        values = dict(label.split("=") for label in labels.replace('"', "").split(","))
        found[f"{values['api']} {values['code']}"] = float(count)
    return {name: count for name, count in found.items() if count}


async def test_what_is_overloaded_is_counted_at_every_endpoint(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, max_turns=1) as running, running.socket() as socket:
        await socket.ask(**send("one"))
        assert (await socket.ask(**send("two")))["code"] == "overloaded"
        assert (await running.request("POST", CHATS, json=CHAT)).status_code == 503
        assert await error_counts(running) == {"native overloaded": 1.0, "chat overloaded": 1.0}


async def test_a_store_that_refuses_is_counted(tmp_path: Path, store_url: str, store: Redis) -> None:
    async with (
        serving(tmp_path, redis_url=store_url) as running,
        running.socket() as socket,
        refusing_writes(store),
    ):
        refused = await socket.ask(**send("one"))
        assert (refused["code"], refused["retryable"]) == ("store_unavailable", True)
        assert await error_counts(running) == {"native store_unavailable": 1.0}


OPEN = {EndpointName.NONE, EndpointName.SHARES}
"""Endpoints without authentication."""
CLOSED = {EndpointName.TRANSCRIPTIONS, EndpointName.SPEECH}
"""Endpoints that are closed unless the operator opens them; `tests/e2e/test_speech.py` tests them."""
PATHS = {
    EndpointName.CHAT: ("POST", "/v1/chat/completions"),
    EndpointName.EMBEDDINGS: ("POST", "/v1/embeddings"),
    EndpointName.ATTACHMENTS: ("POST", "/v1/attachments"),
    EndpointName.RESPONSES: ("POST", "/v1/responses"),
    EndpointName.MESSAGES: ("POST", "/v1/messages"),
    EndpointName.AG_UI: ("POST", "/v1/ag-ui"),
    EndpointName.AI_SDK: ("POST", "/v1/ai-sdk/chat"),
    EndpointName.MODELS: ("GET", "/v1/models"),
    EndpointName.TICKETS: ("POST", "/v1/tickets"),
    EndpointName.EVENTS: ("GET", "/v1/conversations/c/events"),
    EndpointName.ACCOUNT: ("GET", "/v1/export"),
    EndpointName.ADMIN: ("GET", "/v1/admin/turns"),
}
"""A request at each HTTP endpoint with authentication."""
SOCKETS = {
    EndpointName.NATIVE: "/v1/ws",
    EndpointName.REALTIME: "/v1/realtime",
}
"""The endpoints that are WebSockets only."""


def test_each_door_is_asked_for_below_or_open() -> None:
    missing = set(EndpointName) - PATHS.keys() - SOCKETS.keys() - OPEN - CLOSED
    assert not missing, f"Give {missing} a row in PATHS or SOCKETS, or a place in OPEN where nobody is asked."


async def test_who_is_not_known_is_counted(tmp_path: Path, keys: Path) -> None:
    async with serving(tmp_path, api_keys=str(keys)) as running:
        url = running.url.replace("http", "ws")
        for hello in ('{"type":"hello","token":"x"}', '{"type":"ping"}'):
            async with connect(url + SOCKETS[EndpointName.NATIVE]) as opened:
                await opened.send(hello)
                assert (await Socket(opened).closed())[0] == 4401
        with pytest.raises(InvalidStatus):
            async with connect(url + SOCKETS[EndpointName.REALTIME]):
                pass
        for method, path in PATHS.values():
            assert (await running.get(path, method=method, Authorization="Bearer x"))[0] == 401, path
        expected = {
            f"{endpoint.value} unauthenticated": 1.0
            for endpoint in EndpointName
            if endpoint not in OPEN | CLOSED
        }
        assert await error_counts(running) == expected | {"native unauthenticated": 2.0}


async def test_what_is_said_in_a_wrong_way_is_counted(running: InProcessService) -> None:
    async with running.socket() as socket:
        assert (await socket.ask(type="nonsense"))["code"] == "bad_frame"
    assert (await running.request("POST", CHATS, json=CHAT | {"messages": []})).status_code == 400
    assert await error_counts(running) == {"native bad_frame": 1.0, "chat invalid_value": 1.0}


async def test_what_is_asked_for_where_nothing_is_served_is_counted(running: InProcessService) -> None:
    for path, method, status in (
        ("/v1/nothing", "GET", 404),
        ("/nothing", "GET", 404),
        ("/static/nothing", "GET", 404),
        ("/v1/ws", "GET", 426),
        ("/v1/models", "DELETE", 405),
    ):
        assert (await running.get(path, method=method))[0] == status
    assert (await running.get("/nothing", Accept="text/html"))[0] == 404
    with pytest.raises(InvalidStatus):
        async with connect(running.ws_url + "/nothing"):
            pass
    unknown = {"none unknown_url": 5.0, "none upgrade_required": 1.0, "none method_not_allowed": 1.0}
    assert await error_counts(running) == unknown


def test_a_door_has_so_many_codes_at_most() -> None:
    refusals = RefusalCounters()
    for number in range(2 * MAX_CODES):
        refusals.count_error(EndpointName.CHAT, f"code{number}")
    assert len(refusals.sent()[EndpointName.CHAT]) == MAX_CODES + 1
    assert refusals.sent()[EndpointName.CHAT]["other"] == MAX_CODES
