"""Answers at paths where nothing is served; most of them: `tests/transcripts/http/not-served.yaml`."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import peer


def error_in(body: str) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


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
        ("DELETE", "/v1/models/midstream-demo", "get, head, options"),
        ("POST", "/v1/ws", "get"),
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
