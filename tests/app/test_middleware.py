"""The gate over real sockets: addresses, proxies, and the names that the server answers to."""

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


async def test_an_address_that_is_not_listed_gets_nothing_but_a_no(tmp_path: Path) -> None:
    async with serving(tmp_path, **ELSEWHERE) as running:
        for path in ("/", "/metrics", "/v1/ws", "/static/main.js", "/healthz/", "/version"):
            status, no = await answer(running, path)
            assert (status, message(no)) == (403, "Connections from your address are not allowed.")
            assert "MIDSTREAM" not in no
        assert await refused(running) == (403, no)


async def test_a_listed_address_comes_in(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_ips=("127.0.0.0/8",)) as running, running.socket() as socket:
        assert socket.ready
        assert (await answer(running, "/"))[0] == 200


async def test_a_trusted_proxy_tells_whose_request_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, **PROXIED) as running:
        client: dict[str, Any] = {"additional_headers": {"X-Forwarded-For": "10.0.0.1, 203.0.113.9"}}
        async with running.socket(**client) as socket:
            assert socket.ready
        assert (await answer(running, "/", X_Forwarded_For="203.0.113.9, 10.0.0.1"))[0] == 403


async def test_nobody_elses_word_about_an_address_counts(tmp_path: Path) -> None:
    async with serving(tmp_path, **ELSEWHERE) as running:
        assert (await refused(running, X_Forwarded_For="203.0.113.9"))[0] == 403


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
async def test_this_machine_may_always_ask_how_the_service_is(path: str, tmp_path: Path) -> None:
    """A container's health check comes from this machine; a forwarded request does not."""
    async with serving(tmp_path, **PROXIED) as running:
        assert (await answer(running, path))[0] == 200
        assert (await answer(running, path, X_Forwarded_For="198.51.100.1"))[0] == 403
        assert (await answer(running, path, Host="10.1.2.3:8000"))[0] == 200


async def test_a_page_that_points_its_name_at_this_machine_gets_nothing(running: InProcessService) -> None:
    """DNS rebinding: its `Origin` and its `Host` agree, so only the name shows it."""
    by_socket = await refused(running, "evil.example", Origin=f"http://evil.example:{running.port}")
    for status, why in (by_socket, await answer(running, "/", Host="evil.example:8000")):
        assert status == 403
        assert "MIDSTREAM_ALLOWED_HOSTS" in message(why)


async def test_such_a_page_gets_nothing_of_a_container_without_keys(tmp_path: Path) -> None:
    open_to_all: dict[str, Any] = {"host": "0.0.0.0", "insecure": True, "allowed_hosts": ("midstream",)}
    async with serving(tmp_path, **open_to_all) as running:
        for path in ("/", "/metrics", "/v1/models", "/v1/export?client_id=ann"):
            assert (await answer(running, path, Host="evil.example:8000"))[0] == 403
            for name in ("127.0.0.1:8000", "localhost:8000", "midstream:8000", "192.0.2.1:8000"):
                assert (await answer(running, path, Host=name))[0] == 200
        assert (await refused(running, "evil.example", Origin=f"http://evil.example:{running.port}"))[
            0
        ] == 403


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "Via"])
async def test_a_proxy_on_this_machine_that_is_not_trusted_passes_nobody_off_as_this_machine(
    header: str, tmp_path: Path
) -> None:
    async with serving(tmp_path, allowed_ips=("127.0.0.1",)) as running:
        assert (await answer(running, "/"))[0] == 200
        assert (await answer(running, "/", **{header.replace("-", "_"): "127.0.0.1"}))[0] == 403


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


async def test_names_that_are_set_are_answered_to(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_hosts=("chat.example.org",)) as running:
        for host in ("chat.example.org", "localhost"):
            async with called(running, host, Origin=f"https://{host}:{running.port}") as opened:
                assert opened.response
        assert (await answer(running, "/", Host="other.example.org"))[0] == 403


async def test_refusals_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, **PROXIED) as running:
        await refused(running)
        await answer(running, "/")
        _, metrics = await answer(running, "/metrics", X_Forwarded_For="203.0.113.9")
    assert 'midstream_refusals_total{reason="address"} 2.0' in metrics
    assert 'midstream_refusals_total{reason="host"} 0.0' in metrics


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/ws"),
        ("GET", "/v1/realtime"),
        ("POST", "/v1/tickets"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/conversations/c/events?client_id=ann"),
    ],
)
async def test_pages_that_may_not_come_in_are_counted_at_every_door(
    method: str, path: str, running: InProcessService
) -> None:
    socket = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    sent = (socket | key) if path in ("/v1/ws", "/v1/realtime") else {}
    status, _, body = await running.get(path, method=method, Origin="https://evil.example", **sent)
    assert status == 403
    assert "https://evil.example" in message(body)
    assert "MIDSTREAM_ALLOWED_ORIGINS" in message(body)
    _, metrics = await answer(running, "/metrics")
    assert 'midstream_refusals_total{reason="origin"} 1.0' in metrics
