"""The bounds of one connection, against a live server: each has its close code and its count."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame
from websockets.protocol import Protocol as Parser
from websockets.protocol import State
from websockets.server import ServerProtocol

from connections.http_protocol import HttpProtocol, PauseReason
from connections.websocket_protocol import LimitedProtocol, WebSocketProtocol
from sessions.limits.bounds import (
    LEAST_HANDSHAKES,
    MAX_AHEAD_BYTES,
    MAX_FRAGMENTS,
    MAX_HELLO_FRAMES,
    PART_BYTES,
    RATES,
    WRITE_BUFFER_BYTES,
    Bound,
    Rate,
)
from tests.app.in_process_service import InProcessService, serving
from tests.app.raw_http import peer
from tests.chaos.minimal_websocket import (
    CLOSE,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    MinimalWebSocket,
    framed,
    take_frame,
)
from tests.sessions.chat_driver import WAIT_S, eventually

CONT = 0
NOTHING = framed(b"", opcode=CONT, first_bits=0)
BEGUN = framed(b"x", first_bits=0)
ENDLESS = Rate(per_s=1e9, burst=1e9)
POLICY = 1008


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlimited budgets, so that each bound is tested by itself."""
    for bound in RATES:
        monkeypatch.setitem(RATES, bound, ENDLESS)


async def greeted(running: InProcessService, **options: int) -> MinimalWebSocket:
    one = await MinimalWebSocket.connect(("127.0.0.1", running.port), **options)
    await one.send_hello()
    return one


async def close_of(one: MinimalWebSocket) -> tuple[int, str]:
    """Read until the server closes."""
    async with asyncio.timeout(WAIT_S):
        while True:
            opcode, payload = await one.read()
            if opcode == CLOSE:
                one.close()
                return int.from_bytes(payload[:2], "big"), payload[2:].decode()


def limit_hits(running: InProcessService, bound: Bound) -> int:
    return running.service._server.server_state.bounds.met()[bound]


def protocols(
    running: InProcessService, kind: type[WebSocketProtocol | HttpProtocol]
) -> Iterator[WebSocketProtocol | HttpProtocol]:
    return (one for one in running.service._server.server_state.connections if isinstance(one, kind))


async def test_a_message_of_too_many_fragments_ends_the_connection(running: InProcessService) -> None:
    one = await greeted(running)
    await one.write(BEGUN + NOTHING * MAX_FRAGMENTS)
    assert await close_of(one) == (POLICY, f"A message may have at most {MAX_FRAGMENTS} fragments.")
    assert limit_hits(running, Bound.FRAGMENTS) == 1
    _, _, metrics = await running.get("/metrics")
    assert 'midstream_bounds_reached_total{bound="fragments"} 1.0' in metrics
    assert 'midstream_closes_total{code="1008"} 1.0' in metrics


async def test_a_message_of_as_many_fragments_as_may_be_is_heard_with_pings_between(
    running: InProcessService,
) -> None:
    text = b'{"type":"ping","t":"%s"}' % (b"x" * (MAX_FRAGMENTS - 22))
    assert len(text) == MAX_FRAGMENTS
    one = await greeted(running)
    await one.write(framed(text[:1], first_bits=0))
    for place in range(1, MAX_FRAGMENTS - 1):
        await one.write(framed(b"", opcode=PING) + framed(text[place : place + 1], opcode=CONT, first_bits=0))
    await one.write(framed(text[-1:], opcode=CONT))
    assert (await one.get())["type"] == "pong"
    one.close()


async def test_frames_instead_of_a_hello_end_the_connection(running: InProcessService) -> None:
    for frame in (NOTHING, framed(b"", opcode=PING), framed(b"", opcode=PONG)):
        one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
        await one.handshake()
        await one.write((BEGUN if frame == NOTHING else b"") + frame * (MAX_HELLO_FRAMES + 1))
        assert (await close_of(one))[0] == POLICY
    assert limit_hits(running, Bound.HELLO_FRAMES) == 3


async def test_what_is_sent_right_behind_a_hello_is_heard(running: InProcessService) -> None:
    one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
    await one.handshake()
    pings = [framed(b'{"type":"ping","t":%d}' % number) for number in range(50)]
    await one.write(framed(b'{"type":"hello"}') + b"".join(pings))
    assert (await one.get())["type"] == "ready"
    assert [(await one.get())["t"] for _ in pings] == list(range(50))
    one.close()


async def test_nothing_behind_the_first_message_is_parsed_before_it_was_judged(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[bool] = []
    count = LimitedProtocol.recv_frame

    def counting(self: LimitedProtocol, frame: Frame) -> None:
        counted.append(self.close_sent is None)
        count(self, frame)

    monkeypatch.setattr(LimitedProtocol, "recv_frame", counting)
    one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
    await one.handshake()
    await one.write(framed(b'{"type":"ping"}') + framed(b"{}") * 10_000)
    assert (await close_of(one))[0] == 4401
    assert sum(counted) <= PART_BYTES // 6


@pytest.mark.parametrize(
    ("flood", "bound"),
    [
        (framed(b'{"type":"ping"}') * 400, Bound.TEXT_FRAMES),
        (framed(b"", opcode=PING) * 200, Bound.CONTROL_FRAMES),
        (framed(b'{"type":"ping","novel":"%s"}' % (b"x" * 60_000)) * 20, Bound.TEXT_BYTES),
    ],
)
async def test_a_flood_is_read_at_the_rate_of_its_kind(
    flood: bytes, bound: Bound, running: InProcessService
) -> None:
    """It is slowed down, not cut off: nothing is lost."""
    one = await greeted(running)
    await one.write(flood)
    await eventually(lambda: limit_hits(running, bound) > 0)
    (protocol,) = protocols(running, WebSocketProtocol)
    assert not protocol.feed.is_clear
    async with running.socket() as other:
        assert (await other.ask(type="ping"))["type"] == "pong"
    one.close()


async def test_a_flood_that_hides_the_answer_to_our_ping_ends_by_policy(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        config = running.service._server.config
        config.ws_ping_interval = config.ws_ping_timeout = 0.5
        one = await greeted(running)
        await one.write(framed(b"", opcode=PING) * 20_000)
        assert await close_of(one) == (POLICY, "More frames than a connection may send.")
        assert limit_hits(running, Bound.HEARTBEAT) == 1


@pytest.mark.usefixtures("rich")
async def test_megabytes_of_tiny_frames_delay_nobody_elses_ping(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between another client's ping and its answer, a few slices are parsed, not all that came."""
    parsed = [0]
    count = LimitedProtocol.recv_frame

    def counting(self: LimitedProtocol, frame: Frame) -> None:
        parsed[0] += 1
        count(self, frame)

    monkeypatch.setattr(LimitedProtocol, "recv_frame", counting)
    async with running.socket() as other:
        one = await greeted(running)
        data = framed(b"", opcode=PONG) * 40_000
        one._socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, 2 * len(data))
        await one.write(data)
        before = parsed[0]
        assert (await other.ask(type="ping"))["type"] == "pong"
        assert parsed[0] - before < 25_000
        one.close()


@pytest.mark.usefixtures("rich")
async def test_nothing_is_read_from_a_peer_that_does_not_read_and_its_newest_ping_is_answered(
    running: InProcessService,
) -> None:
    one = await greeted(running, receive_buffer=4096)
    last, rest = 0, b""
    while (
        not (limit_hits(running, Bound.UNREAD) and rest) and last < 60_000
    ):  # until the kernel's buffers are full
        await asyncio.sleep(0)
        if not rest:
            last += 1
            rest = framed(b"%0125d" % last, opcode=PING)
        with suppress(BlockingIOError):
            rest = rest[one._socket.send(rest) :]
    (protocol,) = protocols(running, WebSocketProtocol)
    assert isinstance(protocol, WebSocketProtocol)
    assert protocol.feed.holds(PauseReason.UNREAD)
    assert protocol.transport.get_write_buffer_size() <= 2 * WRITE_BUFFER_BYTES
    pongs: list[int] = []
    while not pongs or pongs[-1] < last:
        with suppress(BlockingIOError):
            rest = rest[one._socket.send(rest) :] if rest else b""
        if (taken := take_frame(one._received)) is None:
            await one._fill()
        elif taken[0] == PONG:
            pongs.append(int(taken[1]))
    assert pongs == sorted(pongs)
    one.close()


def test_of_pings_that_can_not_be_answered_the_newest_is_kept() -> None:
    peer = LimitedProtocol(ServerProtocol(state=State.OPEN), max_size=100, clock=lambda: 0.0)
    peer.state = State.OPEN
    peer.parser = Parser.parse(peer)
    next(peer.parser)
    peer.peer_reads = False
    peer.receive_data(b"".join(framed(b"%d" % number, opcode=PING) for number in range(5)))
    assert peer.data_to_send() == []
    assert take_frame(bytearray(peer.pending_pong)) == (PONG, b"4")


async def test_a_reader_that_is_slow_and_alive_is_not_taken_for_dead(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pongs are read between two loads, though it is sent the next one whenever it has read one."""
    load = framed(b"x" * 100, opcode=PONG).replace(b"\xe4\x00\x00\x00\x00", b"\x64") * 4_000
    resume = WebSocketProtocol.resume_writing

    def resume_and_fill(self: WebSocketProtocol) -> None:
        resume(self)
        if not self.transport.is_closing():
            self.transport.write(load)

    monkeypatch.setattr(WebSocketProtocol, "resume_writing", resume_and_fill)
    config = running.service._server.config
    config.ws_ping_interval = config.ws_ping_timeout = 1.0
    one = await greeted(running, receive_buffer=4096)
    (protocol,) = protocols(running, WebSocketProtocol)
    protocol.transport.write(load)
    answered = 0
    while answered < 3:
        opcode, payload = await one.read()
        assert opcode != CLOSE, payload
        if opcode == PING:
            await one.send(payload, opcode=PONG)
            answered += 1
    assert limit_hits(running, Bound.UNREAD) > 1
    assert limit_hits(running, Bound.HEARTBEAT) == 0
    one.close()


async def test_a_handshake_that_can_not_be_read_is_answered_and_ended(running: InProcessService) -> None:
    for lines, status in (
        ("".join(f"X-{number}: y\r\n" for number in range(125)), 431),
        (f"X-Long: {'y' * 9_000}\r\n", 431),
        ("Content-Length: 5\r\n", 400),
        ("X Y: 1\r\n", 400),
    ):
        async with peer(running) as one, asyncio.timeout(WAIT_S):
            one.write(HANDSHAKE.format(host="localhost", extra=lines))
            assert int((await one.rest()).split()[1]) == status
    assert limit_hits(running, Bound.REQUEST_HEAD) == 2
    assert [*protocols(running, WebSocketProtocol)] == []


GET = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def test_requests_sent_ahead_wait_in_the_kernel_and_are_all_answered(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connections.http_protocol.PIPELINED", ENDLESS)
    async with peer(running) as hasty:
        hasty.write(GET * 3_000)
        waiting, ahead = [0], [0]
        for _ in range(3_000):
            assert (await hasty.head()).startswith("HTTP/1.1 200")
            await hasty.body(len('{"status":"ok"}'))
            for protocol in protocols(running, HttpProtocol):
                assert isinstance(protocol, HttpProtocol)
                waiting.append(len(protocol.pipeline))
                ahead.append(len(protocol.feed._pending))
    assert max(waiting) <= PART_BYTES // len(GET) + 1
    assert max(ahead) <= MAX_AHEAD_BYTES + 256 * 1024


async def test_requests_sent_ahead_are_answered_at_their_rate(running: InProcessService) -> None:
    async with peer(running) as hasty:
        hasty.write(GET * 200)
        await eventually(lambda: limit_hits(running, Bound.PIPELINED) > 0)
        assert (await hasty.head()).startswith("HTTP/1.1 200")


async def test_who_waits_for_each_answer_is_not_slowed_down(running: InProcessService) -> None:
    async with peer(running) as patient:
        for _ in range(200):
            patient.write(GET)
            assert (await patient.head()).startswith("HTTP/1.1 200")
            await patient.body(len('{"status":"ok"}'))
    assert limit_hits(running, Bound.PIPELINED) == 0


async def test_a_request_behind_a_large_body_is_answered(running: InProcessService) -> None:
    body = "x" * 1_000_000
    async with peer(running) as one:
        one.write(f"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        one.write(GET)
        assert (await one.head()).startswith("HTTP/1.1 405")
        assert "HTTP/1.1 200 OK" in await one.body(200)


async def test_an_upgrade_behind_an_unanswered_request_is_none(running: InProcessService) -> None:
    handshake = HANDSHAKE.format(host="localhost", extra="")
    async with peer(running) as one:
        one.write(GET + handshake)
        async with asyncio.timeout(WAIT_S):
            assert "101" not in await one.rest()


async def test_one_address_leaves_the_others_a_place_to_say_hello(tmp_path: Path) -> None:
    async with serving(tmp_path, trusted_proxies=("127.0.0.1",), max_pending_connections=20) as running:

        async def come(address: str) -> MinimalWebSocket:
            one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
            await one.handshake(extra=f"X-Forwarded-For: {address}\r\n")
            return one

        silent = [await come("203.0.113.7") for _ in range(LEAST_HANDSHAKES)]
        with pytest.raises(InvalidStatus) as refused:
            await connect(running.ws_url, additional_headers={"X-Forwarded-For": "203.0.113.7"})
        assert refused.value.response.status_code == 503
        assert limit_hits(running, Bound.ADDRESS_SHARE) == 1
        other = await come("203.0.113.8")
        await silent[0].put(type="hello")
        assert (await silent[0].get())["type"] == "ready"
        again = await come("203.0.113.7")
        for one in (*silent, other, again):
            one.close()


async def test_no_hello_in_time_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, hello_s=0.05) as running:
        one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
        await one.handshake()
        assert (await close_of(one))[0] == 4408
        assert limit_hits(running, Bound.HELLO_TIME) == 1


async def test_bad_frames_are_counted_where_they_end_a_connection(running: InProcessService) -> None:
    one = await greeted(running)
    await one.write(framed(b"{}", opcode=TEXT) * 20)
    assert (await close_of(one))[0] == POLICY
    assert limit_hits(running, Bound.BAD_FRAMES) == 1


async def test_frames_that_no_client_may_send_end_the_connection(running: InProcessService) -> None:
    for frame, code, closed in (
        (b"\x81\x02{}", 1002, 1),  # not masked
        (framed(b"{}", first_bits=0xC0), 1002, 2),  # compressed without agreement
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big"), 1009, 1),  # announced, before any of it has come
    ):
        one = await greeted(running)
        await one.write(frame)
        assert (await close_of(one))[0] == code
        while running.service._server.server_state.bounds.closes().get(str(code)) != closed:
            await running.get("/healthz")
