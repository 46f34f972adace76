"""Answers at paths where nothing is served, and near misses that are served nevertheless."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import peer

HELLO: dict[str, Any] = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello!"}]}
SERVED = ("POST /v1/chat/completions", "GET /v1/models", "POST /v1/tickets", "/v1/ws", "/v1/realtime")


def error_in(body: str) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/moderations", "/v1/batches", "/v1/v1/models", "/v1/models/a%0Ab"]
)
async def test_below_v1_whatever_is_not_served_says_what_is(
    method: str, path: str, running: InProcessService
) -> None:
    status, headers, body = await running.get(path, method=method)
    error = error_in(body)
    assert (status, headers["content-type"], error["code"]) == (404, "application/json", "unknown_url")
    for route in SERVED:
        assert route in error["message"]


@pytest.mark.parametrize("path", ["/models", "/chat/completions", "/completions", "/tickets", "/ws"])
async def test_a_path_without_v1_is_told_its_own(path: str, running: InProcessService) -> None:
    status, _, body = await running.get(path)
    assert (status, error_in(body)["message"]) == (
        404,
        f"This server does not serve {path}, but /v1{path}. The base URL of an API client ends with /v1.",
    )


@pytest.mark.parametrize("path", ["/api/tags", "/moderations", "/v2/models", "/favicon.ico", "/v1x"])
async def test_elsewhere_the_doors_are_named(path: str, running: InProcessService) -> None:
    status, _, body = await running.get(path, method="POST")
    message = error_in(body)["message"]
    assert status == 404
    shown = path if path in ("/api/tags", "/moderations") else "this path"
    assert message.startswith(f"This server does not serve {shown}. ")
    assert message.endswith("ends with /v1.")
    assert all(route in message for route in SERVED)


async def test_a_browser_reads_words_and_no_json(running: InProcessService) -> None:
    status, headers, body = await running.get("/nowhere", Accept="text/html,*/*;q=0.8")
    assert (status, headers["content-type"]) == (404, "text/plain; charset=utf-8")
    assert body == "Page not found. The chat is at /."


@pytest.mark.parametrize("odd", ["x" * 9000, "msk_Zm9vYmFy0", "%22%0a", "../x", "%C3%A9"])
async def test_only_plain_words_of_a_path_are_repeated(odd: str, running: InProcessService) -> None:
    """Other paths may contain a key, or be endlessly many."""
    for path in (f"/v1/{odd}", f"/v1/models/{odd}", f"/static/{odd}", f"/{odd}"):
        for method in ("POST", "GET"):
            _, _, body = await running.get(path, method=method)
            if "model_not_found" not in body:
                assert odd not in error_in(body)["message"]
                assert len(body) < 1000


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "options, post"),
        ("GET", "/v1/tickets", "options, post"),
        ("POST", "/v1/models", "get, head, options"),
        ("DELETE", "/v1/models/midstream-demo", "get, head, options"),
        ("POST", "/v1/conversations/c/events", "get, head, options"),
        ("POST", "/v1/ws", "get"),
        ("PUT", "/v1/realtime/", "get"),
        ("POST", "/healthz", "get, head"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    method: str, path: str, allowed: str, running: InProcessService
) -> None:
    status, headers, body = await running.get(path, method=method)
    error = error_in(body)
    assert (status, headers["allow"], error["code"]) == (405, allowed, "method_not_allowed")
    assert f" does not support {method}. Allowed: {allowed.upper()}." in error["message"]


@pytest.mark.parametrize("path", ["/v1/ws", "/v1/realtime", "/v1/ws/", "/v1/realtime?model=midstream-demo"])
async def test_a_plain_get_of_a_sockets_path_asks_for_an_upgrade(
    path: str, running: InProcessService
) -> None:
    async with peer(running) as client:
        client.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        head, _, body = (await client.rest()).partition("\r\n\r\n")
    error = error_in(body)
    assert " 426 " in head
    assert "\r\nupgrade: websocket\r\nconnection: upgrade\r\n" in head.lower()
    assert error["code"] == "upgrade_required"
    assert "is a WebSocket: connect to it by ws:// or wss://." in error["message"]


async def test_a_slash_at_the_end_changes_nothing(running: InProcessService) -> None:
    for path in ("/v1/models/", "/v1/models/midstream-demo/", "/healthz/", "/health/", "/version/"):
        assert (await running.get(path))[0] == 200
    body = json.dumps(HELLO)
    async with peer(running) as client:
        client.write(
            "POST /v1/chat/completions/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        assert " 200 " in (await client.rest()).partition("\r\n")[0]


async def test_health_and_version_are_where_other_servers_have_them(running: InProcessService) -> None:
    assert json.loads((await running.get("/health"))[2]) == {"status": "ok"}
    reported = json.loads((await running.get("/version"))[2])
    assert reported == {"name": "midstream", "version": version("midstream")}


async def test_pages_of_listed_origins_may_read_what_is_said(tmp_path: Path) -> None:
    """Without this a browser neither lets its page ask nor shows it the answer."""
    ours = "https://chat.example"
    async with serving(tmp_path, allowed_origins=(ours,)) as running:
        requested = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        status, headers, _ = await running.get("/v1/moderations", method="OPTIONS", Origin=ours, **requested)
        assert (status, headers["access-control-allow-origin"]) == (204, ours)
        status, headers, body = await running.get("/v1/moderations", method="POST", Origin=ours)
        assert (status, headers["access-control-allow-origin"]) == (404, ours)
        assert error_in(body)["code"] == "unknown_url"
        status, headers, _ = await running.get("/v1/moderations", Origin="https://evil.example")
        assert status == 403
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/metrics/", "/metrics//", "/metrics%2F"])
async def test_a_slash_leads_nobody_to_what_a_proxy_keeps_inside(
    path: str, running: InProcessService
) -> None:
    """Proxies hide `/metrics` by exactly this name."""
    status, _, body = await running.get(path)
    assert status == 404
    assert "midstream_" not in body
