"""The gate over real sockets: what `tests/transcripts/http` does not show of addresses, proxies, and the server's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.keys import add_key
from connections.authentication.api_keys import Kind
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import answer

ELSEWHERE: dict[str, Any] = {"allowed_ips": ("203.0.113.0/24",)}
PROXIED: dict[str, Any] = ELSEWHERE | {"trusted_proxies": ("127.0.0.1",)}


def called(running: InProcessService, name: str = "127.0.0.1", **headers: str) -> connect:
    """Open a WebSocket to the server under a name; underscores in headers stand for hyphens."""
    given = {header.replace("_", "-"): value for header, value in headers.items()}
    url = f"ws://{name}:{running.port}/v1/ws"
    return connect(url, host="127.0.0.1", port=running.port, additional_headers=given)


async def refused(running: InProcessService, name: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    """Return the refusal of a WebSocket's handshake."""
    with pytest.raises(InvalidStatus) as refusal:
        async with called(running, name, **headers):
            pass
    response = refusal.value.response
    return response.status_code, (response.body or b"").decode()


def message(body: str) -> str:
    """Return the message for people."""
    reported = json.loads(body)["error"]
    assert reported.keys() == {"message", "type", "param", "code"}
    assert (reported["type"], reported["code"]) == ("permission_error", "forbidden")
    return str(reported["message"])


@pytest.mark.parametrize("settings", [{}, {"host": "0.0.0.0", "insecure": True}])
async def test_a_page_that_points_its_name_at_this_machine_gets_nothing(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """DNS rebinding: its `Origin` and its `Host` agree, so only the name shows it."""
    async with serving(tmp_path, **settings) as running:
        status, why = await refused(running, "evil.example", Origin=f"http://evil.example:{running.port}")
        assert (status, "MIDSTREAM_ALLOWED_HOSTS" in message(why)) == (403, True)


async def test_a_proxy_that_is_not_trusted_is_named_in_the_log_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        with capture_logs() as log:
            for _ in range(3):
                await answer(running, "/", X_Forwarded_For="203.0.113.9")
    (line,) = (line for line in log if line["event"] == "X-Forwarded-For from untrusted proxy ignored")
    assert line["peer"] == "127.0.0.1"
    assert "MIDSTREAM_TRUSTED_PROXIES" in line["remedy"]
    async with serving(tmp_path, trusted_proxies=("127.0.0.1",)) as running:
        with capture_logs() as log:
            await answer(running, "/", X_Forwarded_For="203.0.113.9")
    assert [line for line in log if "untrusted" in line["event"]] == []


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "Via"])
async def test_clients_of_a_proxy_on_this_machine_share_limits_if_it_is_not_trusted(
    header: str, tmp_path: Path
) -> None:
    """Each request is that of another client, since none has a key."""
    body = {"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello!"}]}
    async with (
        serving(tmp_path, message_rate=0.2) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):

        async def request_status(**headers: str) -> int:
            return (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code

        assert {await request_status() for _ in range(20)} == {200}
        assert {await request_status(**{header: f"203.0.113.{number}"}) for number in range(20)} == {200, 429}


async def test_metrics_are_for_this_machine_private_networks_and_operators(
    keys: Path, tmp_path: Path
) -> None:
    operator, ann = (
        add_key(keys, name, kind=kind) for name, kind in (("op", Kind.ADMIN), ("ann", Kind.PERSONAL))
    )
    async with serving(tmp_path, api_keys=str(keys), trusted_proxies=("127.0.0.1",)) as running:

        async def scraped(address: str, key: str = "") -> int:
            headers = {"X-Forwarded-For": address} | ({"Authorization": f"Bearer {key}"} if key else {})
            return (await running.get("/metrics", **headers))[0]

        assert (await running.get("/metrics"))[0] == 200
        assert [await scraped(one) for one in ("10.1.2.3", "fd00::1", "100.64.0.1")] == [200] * 3
        assert [await scraped(one) for one in ("8.8.8.8", "2606:4700::1", "nobody")] == [401] * 3
        assert (await scraped("8.8.8.8", ann), await scraped("8.8.8.8", operator)) == (401, 200)
    async with serving(tmp_path / "other", api_keys=str(keys)) as running:
        assert (await running.get("/metrics", Via="1.1 a-proxy-without-a-name"))[0] == 401


async def test_refusals_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, **PROXIED) as running:
        await refused(running)
        await answer(running, "/")
        await answer(running, "/v1/models", X_Forwarded_For="203.0.113.9", Origin="https://evil.example")
        _, metrics = await answer(running, "/metrics", X_Forwarded_For="203.0.113.9")
    assert 'midstream_refusals_total{reason="address"} 2.0' in metrics
    assert 'midstream_refusals_total{reason="host"} 0.0' in metrics
    assert 'midstream_refusals_total{reason="origin"} 1.0' in metrics
