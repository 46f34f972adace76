"""One request in, one response out: whatever frames a message, its body is never read as another request."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sessions.limits.bounds import Bound
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import exchange, peer
from tests.app.smuggled_requests import LAST, UPGRADES, by_length, in_chunks, requests, statuses
from tests.app.test_connection_limits import limit_hits

CUTS = {"one write": 1 << 20, "parts of 7": 7, "parts of 512": 512}


def parts(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("cut", CUTS)
async def test_a_body_is_never_another_request(running: InProcessService, cut: str) -> None:
    """n requests in, at most n responses out, or the connection is closed."""
    split = []
    for name, request in requests():
        answers = await exchange(running, *parts(request + LAST, CUTS[cut]))
        found = statuses(answers)
        is_last = answers.endswith(b'{"status":"ok"}')
        if len(found) > 2 or b'"version"' in answers or (len(found) == 2 and not is_last):
            split.append((name, found))
    assert split == []


@pytest.mark.parametrize("upgrade", ["foo", "h2c", "list", "two lines"])
@pytest.mark.parametrize("framing", [by_length, in_chunks])
async def test_an_upgrade_that_is_not_taken_changes_nothing(
    running: InProcessService, upgrade: str, framing: Callable[[bytes], bytes]
) -> None:
    """Java's HTTP client offers `h2c` with each request in plain text."""
    requested = b'{"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + UPGRADES[upgrade]
    answers = await exchange(running, head + framing(requested), LAST)
    assert statuses(answers) == [200, 200]
    assert b'"chat.completion"' in answers


@pytest.mark.parametrize("name", ["Authorization: Bearer x", "Host: localhost", "Content-Length: 0"])
@pytest.mark.parametrize("upgrade", ["none", "handshake"])
async def test_a_header_that_counts_once_comes_once(
    running: InProcessService, name: str, upgrade: str
) -> None:
    lines = f"GET /v1/ws HTTP/1.1\r\n{name}\r\n{name}\r\n".encode()
    host = b"" if name.startswith("Host") else b"Host: localhost\r\n"
    answers = await exchange(running, lines + host + UPGRADES[upgrade] + b"\r\n")
    assert statuses(answers) == [400]


@pytest.mark.parametrize("version", [b" HTTP/1.1", b" HTTP/2.0", b" HTTP/0.9", b""])
async def test_a_request_names_its_host(running: InProcessService, version: bytes) -> None:
    assert statuses(await exchange(running, b"GET /healthz" + version + b"\r\n\r\n")) == [400]


async def test_a_body_that_is_announced_too_large_is_not_asked_for(running: InProcessService) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    async with peer(running) as one:
        one.write((head + b"Content-Length: 5000000\r\n\r\n").decode())
        head = await one.head()
    assert head.startswith("HTTP/1.1 413 ")
    assert "connection: close\r\n" in head  # the client may send its next request instead of the body


CHUNKED = b"POST /version HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize(
    "endless",
    [
        b"0\r\n" + b"a: b\r\n" * 4_000,
        b"0\r\na: " + b"b" * 20_000,
        b"1;" + b"e" * 20_000,
        b"1;e=" + b"1;" * 10_000,
        (b"1;" + b"e" * 1_000 + b"\r\nx\r\n") * 20,
    ],
)
async def test_trailers_and_chunk_extensions_are_bounded(running: InProcessService, endless: bytes) -> None:
    """The method is refused before they come: the request has its one answer already."""
    async with peer(running) as one:
        one.write(CHUNKED.decode())
        answers = await one.head()
        one.write(endless.decode())
        answers += await one.rest()
    assert statuses(answers.encode()) == [405]
    assert limit_hits(running, Bound.REQUEST_HEAD) == 1


async def test_empty_lines_between_requests_are_bounded(running: InProcessService) -> None:
    """A peer that sends them without a pause has no idle moment at which its time could end."""
    async with peer(running) as one:
        one.write(LAST.decode().replace("close", "keep-alive"))
        await one.head()
        await one.body(len('{"status":"ok"}'))
        one.write("\r\n" * 10_000)
        assert await one.rest() == ""
    assert limit_hits(running, Bound.REQUEST_HEAD) == 1


async def test_a_bad_request_is_not_answered_in_place_of_the_one_ahead(running: InProcessService) -> None:
    assert 400 not in statuses(await exchange(running, LAST.replace(b"close", b"keep-alive") + b"no\r\n\r\n"))


async def test_a_body_in_chunks_of_one_byte_is_read(running: InProcessService) -> None:
    requested = b'{"model": "midstream-demo", "messages": [{"role": "user", "content": "%b"}]}' % (
        b"x" * 20_000
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in requested)
    assert statuses(await exchange(running, head + chunks + b"0\r\n\r\n", LAST)) == [200, 200]


async def test_a_trailer_is_no_header(tmp_path: Path) -> None:
    """With the head in the same part, each line of it used to count."""
    chat = b'{"model": "midstream-demo", "messages": [{"role": "user", "content": "Hello?"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 203.0.113.7\r\n"
    body = in_chunks(chat).removesuffix(b"\r\n")
    async with serving(tmp_path, allowed_ips=("10.0.0.0/8",), trusted_proxies=("127.0.0.1",)) as running:
        for trailer in (
            b"X-Forwarded-For: 10.1.1.1\r\n",
            b"Content-Encoding: gzip\r\n",
            b"Origin: http://x\r\n",
        ):
            answers = await exchange(running, head + body + trailer + b"\r\n", LAST)
            assert statuses(answers)[0] == 403
    async with serving(tmp_path / "other") as running:
        trailers = b"Content-Encoding: gzip\r\nOrigin: http://x\r\nHost: y\r\nAuthorization: Bearer z\r\n\r\n"
        answers = await exchange(running, head + body + trailers, LAST)
        assert statuses(answers) == [200, 200]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost:8000/healthz", 200),
        (b"http://LOCALHOST:8000/healthz", 200),
        (b"http://evil.example/healthz", 400),
        (b"http://localhost/healthz", 400),
        (b"http://localhost:8000@evil.example/healthz", 400),
        (b"http://[/healthz", 400),
    ],
)
async def test_a_target_with_another_host_than_the_header_is_refused(
    target: bytes, status: int, running: InProcessService
) -> None:
    head = b"GET " + target + b" HTTP/1.1\r\nHost: localhost:8000\r\nConnection: close\r\n\r\n"
    assert statuses(await exchange(running, head)) == [status]


async def test_the_time_for_a_request_ends_while_its_peer_sends_on(tmp_path: Path) -> None:
    """The answer came at once; the body has no end."""
    async with serving(tmp_path, request_s=0.5) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(CHUNKED)

        async def send_on() -> None:
            with suppress(ConnectionError):
                while True:
                    writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                    await writer.drain()

        sender = asyncio.create_task(send_on())
        with suppress(ConnectionResetError):
            assert statuses(await reader.read()) == [405]
        sender.cancel()
        writer.close()


@pytest.mark.parametrize(
    "path", ["/metrics%0a", "/metrics%0A", "/healthz%0d", "/v1/models%00", "/%0a/metrics"]
)
async def test_no_path_has_a_control_character(running: InProcessService, path: str) -> None:
    """A proxy's rule for `/metrics` does not match such a path."""
    assert (await running.get(path))[0] == 404


@pytest.mark.parametrize("name", ["_should_upgrade", "_start_asgi_task"])
def test_uvicorn_has_the_private_methods_that_are_replaced(name: str) -> None:
    assert name in vars(HttpToolsProtocol)
    assert f"self.{name}(" in inspect.getsource(HttpToolsProtocol)
