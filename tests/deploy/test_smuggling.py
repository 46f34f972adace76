"""Requests that hide another one, through the shipped proxies, which share their connections among clients."""

from __future__ import annotations

import http.client
import http.server
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from tests.app.smuggled_requests import UPGRADES, requests, statuses
from tests.deploy.reverse_proxy import ReverseProxy

VICTIMS = 3
READ_S = 5.0


def send(reverse_proxy: ReverseProxy, request: bytes) -> bytes:
    """Send bytes to the proxy as they are and return its first answer, or all until it closes."""
    with (
        socket.create_connection(("localhost", reverse_proxy.https_port), timeout=READ_S) as line,
        reverse_proxy.tls.wrap_socket(line, server_hostname="localhost") as attacker,
    ):
        attacker.sendall(request)
        answers = b""
        with suppress(TimeoutError, ConnectionResetError, ssl.SSLError):
            while part := attacker.recv(1 << 16):
                answers += part
                head, ended, body = answers.partition(b"\r\n\r\n")
                if ended and len(body) >= length_of(head):
                    break
        return answers


def length_of(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length: ")
    return int(rest.split()[0]) if found else 0


def victim(reverse_proxy: ReverseProxy) -> tuple[int, bytes]:
    """Ask as somebody else would, over a connection of their own."""
    with closing(
        http.client.HTTPSConnection("localhost", reverse_proxy.https_port, context=reverse_proxy.tls)
    ) as one:
        one.request("GET", "/healthz")
        response = one.getresponse()
        return response.status, response.read()


def test_nobody_gets_the_answer_of_a_hidden_request(reverse_proxy: ReverseProxy) -> None:
    """n requests in, at most n responses out: the requests of others are answered as if nobody had attacked."""
    wrong = []
    for name, request in requests(host=f"localhost:{reverse_proxy.https_port}"):
        answers = send(reverse_proxy, request)
        others = [victim(reverse_proxy) for _ in range(VICTIMS)]
        if len(statuses(answers)) > 1 or others != [(200, b'{"status":"ok"}')] * VICTIMS:
            wrong.append((name, statuses(answers), others))
    assert wrong == []


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the upgrades that it was offered."""

    def do_GET(self) -> None:
        offered = ", ".join(self.headers.get_all("Upgrade", [])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(offered)))
        self.end_headers()
        self.wfile.write(offered)

    def log_message(self, *_: object) -> None:
        """Leave the test's output alone."""


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_no_upgrade_but_websocket_is_offered_to_the_service(
    kind: str, request: pytest.FixtureRequest, run_reverse_proxy: Callable[[ReverseProxy], None]
) -> None:
    site: Callable[[int], ReverseProxy] = request.getfixturevalue(f"{kind}_site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as service:
        serving = threading.Thread(target=service.serve_forever)
        serving.start()
        run_reverse_proxy(reverse_proxy := site(service.server_port))
        start = f"GET /v1/ws HTTP/1.1\r\nHost: localhost:{reverse_proxy.https_port}\r\n".encode()
        offered = {
            name: send(reverse_proxy, start + upgrade + b"\r\n").rpartition(b"\r\n\r\n")[2]
            for name, upgrade in UPGRADES.items()
        }
        service.shutdown()
        serving.join()
    assert set(offered.values()) == {b"", b"websocket"}, offered
