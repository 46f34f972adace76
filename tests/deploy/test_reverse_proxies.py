"""A chat through a real nginx and a real Caddy: TLS in front, the service behind, the shipped site between."""

from __future__ import annotations

import gzip
import http.client
import http.server
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.deploy.nginx_site import NginxSite
from tests.deploy.reverse_proxy import ReverseProxy
from tests.e2e.websocket_client import WebSocketClient, connect_client
from tests.server_process import free_port

LOGGED_S = 10.0


def chat(
    reverse_proxy: ReverseProxy, client_id: str, *, origin: str | None = None
) -> AbstractAsyncContextManager[WebSocketClient]:
    """A connection that was greeted."""
    return connect_client(
        f"wss://localhost:{reverse_proxy.https_port}/v1/ws",
        client_id,
        ssl=reverse_proxy.tls,
        additional_headers={"Origin": origin} if origin else {},
        subprotocols=[Subprotocol("midstream.v1")],
    )


def get(
    connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(connection):
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read()


def https(reverse_proxy: ReverseProxy) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", reverse_proxy.https_port, context=reverse_proxy.tls)


async def test_a_turn_comes_whole(reverse_proxy: ReverseProxy, client_id: str) -> None:
    async with chat(reverse_proxy, client_id) as client:
        text, done = await client.chat("Hello!", params={"max_new_tokens": 12})
    assert (len(text), text != "") == (done["chars"], True)


async def test_deltas_leave_while_the_turn_still_runs(reverse_proxy: ReverseProxy, client_id: str) -> None:
    async with chat(reverse_proxy, client_id) as client:
        await client.put(type="send", client_msg_id="m1", content="Count from 1 to 300.")
        for _ in range(5):
            await client.until("delta")
        await client.put(type="cancel")
        done = await client.until("done")
    assert (done["reason"], done["cancel"]["cause"]) == ("cancelled", "client")


async def test_the_page_of_the_same_name_may_connect(reverse_proxy: ReverseProxy, client_id: str) -> None:
    origin = f"https://localhost:{reverse_proxy.https_port}"
    async with chat(reverse_proxy, client_id, origin=origin) as client:
        assert client.socket.subprotocol == "midstream.v1"


async def test_a_page_of_another_name_is_refused(reverse_proxy: ReverseProxy, client_id: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with chat(reverse_proxy, client_id, origin="https://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403


def test_the_page_and_its_health_are_served_over_tls(reverse_proxy: ReverseProxy) -> None:
    health, _ = get(https(reverse_proxy), "/healthz")
    _, page = get(https(reverse_proxy), "/")
    assert health.status == 200
    assert b"<!doctype html" in page.lower()


def test_the_pages_files_come_through_as_they_were_coded(reverse_proxy: ReverseProxy) -> None:
    _, page = get(https(reverse_proxy), "/")
    (script,) = re.findall(rb'src="(static/start[^"]+)"', page)
    answer, coded = get(https(reverse_proxy), f"/{script.decode()}", {"Accept-Encoding": "gzip"})
    _, plain = get(https(reverse_proxy), f"/{script.decode()}")
    assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert gzip.decompress(coded) == plain
    tag = {"If-None-Match": answer.headers["ETag"], "Accept-Encoding": "gzip"}
    known, nothing = get(https(reverse_proxy), f"/{script.decode()}", tag)
    assert (known.status, nothing) == (304, b"")


def test_plain_http_is_sent_on_to_https(reverse_proxy: ReverseProxy) -> None:
    moved, _ = get(http.client.HTTPConnection("localhost", reverse_proxy.http_port), "/?a=1")
    assert moved.status == 308
    assert moved.headers["Location"].endswith("/?a=1")
    assert urlsplit(moved.headers["Location"]).hostname == "localhost"


@pytest.mark.parametrize("path", ["/metrics", "/v1/admin/turns", "/v1/%61dmin/turns/"])
def test_metrics_and_the_admin_api_stay_inside(reverse_proxy: ReverseProxy, path: str) -> None:
    hidden, body = get(https(reverse_proxy), path)
    assert hidden.status == 404
    assert b"unknown_url" not in body  # the service was not asked


@pytest.mark.parametrize(
    "path", ["/metrics%0a", "/metrics%0d", "//metrics", "/./metrics", "/metrics/", "/metrics%00"]
)
def test_no_other_spelling_of_metrics_is_served(reverse_proxy: ReverseProxy, path: str) -> None:
    hidden, body = get(https(reverse_proxy), path)
    assert hidden.status in (400, 404)
    assert b"midstream_" not in body


def logged(reverse_proxy: ReverseProxy, *, requests: int) -> list[str]:
    """What the log says once it has so many: it is written behind the answer, without an event to wait for."""
    deadline = time.monotonic() + LOGGED_S
    while len(lines := reverse_proxy.logged()) < requests and time.monotonic() < deadline:
        time.sleep(0.02)
    return lines


async def test_the_log_has_no_ticket_no_client_and_no_shared_link(
    reverse_proxy: ReverseProxy, client_id: str
) -> None:
    events = f"/v1/events?ticket=secret-ticket&client_id={client_id}"
    for path in (events, "/s/secret-share?x=1", "/healthz", "/v1/ai-sdk/chat/secret-chat/messages"):
        get(https(reverse_proxy), path, {"Referer": "https://localhost/s/secret-share"})
    events, share, health, chat = logged(reverse_proxy, requests=4)
    assert chat in {"GET /v1/ai-sdk/chat/- HTTP/1.1", "GET /v1/ai-sdk/chat/ HTTP/1.1"}
    assert (events, health) == ("GET /v1/events HTTP/1.1", "GET /healthz HTTP/1.1")
    assert share in {"GET /s/- HTTP/1.1", "GET /s/ HTTP/1.1"}
    assert not any(word in reverse_proxy.log.read_text() for word in ("secret", client_id))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nginx", "upstream 127.0.0.1:{} 502"), ("caddy", "127.0.0.1:{}: connect: connection")],
)
def test_a_request_that_fails_leaves_no_ticket_in_any_log_and_its_reason_in_one(
    name: str, reason: str, request: pytest.FixtureRequest
) -> None:
    """Both programs would quote such a request whole."""
    site = request.getfixturevalue(f"{name}_site")(port := free_port())
    with subprocess.Popen(site.command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(site.ready_text in line for line in process.stderr)
        for path in ("/v1/events?ticket=secret", "/s/secret-share"):
            failed, _ = get(https(site), path, {"Referer": "https://localhost/s/secret-share"})
            assert failed.status == 502
            get(http.client.HTTPConnection("localhost", site.http_port), path)
        process.terminate()
        stderr = process.communicate()[1]
    logs = [file.read_text() for file in site.prefix.glob("*.log")]
    assert "secret" not in "".join((stderr, *logs))
    assert reason.format(port) in site.failures.read_text()


def test_browsers_are_offered_http_2(reverse_proxy: ReverseProxy) -> None:
    reverse_proxy.tls.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("localhost", reverse_proxy.https_port)) as line,
        reverse_proxy.tls.wrap_socket(line, server_hostname="localhost") as browser,
    ):
        assert browser.selected_alpn_protocol() == "h2"


class Answering(http.server.BaseHTTPRequestHandler):
    """A replica: answers 503 to handshakes, as one that is about to stop, or 200 to all else."""

    def do_GET(self) -> None:
        stops = "Upgrade" in self.headers and self.server.server_port == getattr(
            self.server, "stopping", None
        )
        self.send_response(503 if stops else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Leave the test's output alone."""


@contextmanager
def replica(port: int, *, stops: bool = False) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Answering) as server:
        server.stopping = port if stops else None  # type: ignore[attr-defined]
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield
        server.shutdown()
        serving.join()


def test_a_replica_that_is_back_is_asked_at_once(
    nginx_site: Callable[..., NginxSite], run_reverse_proxy: Callable[[ReverseProxy], None]
) -> None:
    """By default nginx leaves a server out for ten seconds after one failure, and answers 502 if it left out all."""
    ports = free_port(), free_port()
    run_reverse_proxy(site := nginx_site(*ports))
    assert get(https(site), "/healthz")[0].status == 502
    with replica(ports[0]), replica(ports[1]):
        assert [get(https(site), "/healthz")[0].status for _ in range(4)] == [200] * 4


def test_a_handshake_that_a_stopping_replica_refuses_goes_to_another(
    nginx_site: Callable[..., NginxSite], run_reverse_proxy: Callable[[ReverseProxy], None]
) -> None:
    ports = free_port(), free_port()
    run_reverse_proxy(site := nginx_site(*ports))
    with replica(ports[0], stops=True), replica(ports[1]):
        handshakes = [get(https(site), "/v1/ws", {"Upgrade": "websocket"})[0].status for _ in range(4)]
    assert handshakes == [200] * 4


def seconds(value: str) -> int:
    return int(value[:-1]) * {"s": 1, "m": 60, "h": 3600}[value[-1]]


def test_nginx_accepts_the_site_without_a_warning(nginx_site: Callable[[int], NginxSite]) -> None:
    checked = subprocess.run(nginx_site(9).command_with("-t"), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr


def test_a_socket_may_be_quiet_for_an_hour_and_nothing_is_buffered(deploy: Path) -> None:
    snippet = (deploy / "nginx/midstream-proxy.conf").read_text()
    directives = dict(re.findall(r"^(\w+)\s+([^;#]+);", snippet, re.MULTILINE))
    assert seconds(directives["proxy_read_timeout"]) >= 3600
    assert directives["proxy_buffering"] == "off"
