"""One connection over a transport in memory: who waits for whom, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from connections.authentication.caller import Caller
from connections.connection import MAX_CANCELS, MAX_REQUESTS, Connection, ErrorBudget
from connections.http import EndpointName
from connections.limiters import Limiters
from connections.outbox import Outbox
from connections.protocol import codec
from connections.protocol.audio import AudioStop
from connections.protocol.errors import BadFrame, BadParams, Close, CloseCode
from connections.protocol.frames import Cancel, Cancelled, Delete, Hello, History, Ping, Pong, Request, Send
from sessions.errors import NotFound
from sessions.events import Deleted
from sessions.records import Client, Owner
from sessions.turn.turn import SentOffsets
from tests.connections.connection.memory_transport import MemoryTransport
from tests.connections.factory import delta

SEND = {"type": "send", "client_msg_id": "m1", "content": "x"}


class StubHandler:
    """A handler: pings are quick, histories wait until `open`, the rest goes wrong in one way each."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.open = asyncio.Event()
        self.dropped = 0

    def handle(self, connection: Connection, frame: Request) -> Coroutine[None, None, None] | None:
        self.requests.append(frame)
        match frame:
            case Ping():
                connection.push(Pong(ref=frame.ref, t=frame.t))
            case Cancel():
                connection.push(Cancelled(ref=frame.ref, turn_id=None, already=True))
                return self.wait(connection, frame) if frame.mode == "rollback" else None
            case History():
                return self.wait(connection, frame)
            case AudioStop():
                return None
            case Delete():
                return self.fail(frame)
            case Hello():
                raise BadFrame("type: hello was said already.")
            case Send() if frame.params.temperature is not None:
                raise BadParams("params.temperature: not this one.")
            case _:
                raise LookupError("a secret of the service")
        return None

    async def wait(self, connection: Connection, frame: Request) -> None:
        try:
            await self.open.wait()
        finally:
            self.dropped += not self.open.is_set()
        connection.push(Pong(ref=frame.ref))

    async def fail(self, frame: Delete) -> None:
        await asyncio.sleep(0)
        if frame.conversation_id == "unknown":
            raise NotFound('There is no conversation "unknown".')
        raise LookupError("a secret of the service")


class Peer:
    """The two ends of a connection that is served."""

    serving: asyncio.Task[None]

    def __init__(self, max_bytes: int) -> None:
        self.wire = MemoryTransport()
        self.handler = StubHandler()
        self.outbox = Outbox(max_bytes=max_bytes)
        self.limiters = Limiters()
        self.connection = Connection(
            self.wire,
            caller=Caller(Owner("anonymous", "c"), Client("anonymous", "c")),
            outbox=self.outbox,
            tally=self.limiters.tally(EndpointName.NATIVE),
        )

    async def ask(self, frame: dict[str, Any] | str | bytes) -> dict[str, Any]:
        self.wire.client_sends(frame)
        return await self.wire.sent.get()

    async def ends(self) -> tuple[int, str] | None:
        await self.serving
        return self.wire.closed


@asynccontextmanager
async def served(max_bytes: int = 64 * 1024) -> AsyncIterator[Peer]:
    peer = Peer(max_bytes)
    before = asyncio.all_tasks()
    peer.serving = asyncio.create_task(peer.connection.serve(peer.handler, codec.decode))
    yield peer
    peer.wire.client_disconnects()
    await peer.serving
    assert peer.connection.closed
    assert asyncio.all_tasks() == before  # every task had an owner


async def test_a_burst_is_answered_while_it_comes_and_a_slow_request_keeps_nobody_waiting() -> None:
    """A client that reads is not taken for a slow one because it writes fast."""
    async with served(max_bytes=16 * 1024) as peer:
        for number in range(500):
            peer.wire.client_sends({"type": "ping", "t": number})
        assert [(await peer.wire.sent.get())["t"] for _ in range(500)] == list(range(500))
        peer.wire.client_sends({"type": "history", "ref": "slow"})
        assert (await peer.ask({"type": "ping", "ref": "quick"}))["ref"] == "quick"
        peer.handler.open.set()
        assert (await peer.wire.sent.get())["ref"] == "slow"


async def test_too_many_requests_at_once_are_refused_before_anything_is_done() -> None:
    async with served() as peer:
        for number in range(MAX_REQUESTS):
            peer.wire.client_sends({"type": "history", "ref": str(number)})
        refused = await peer.ask(SEND)
        assert (refused["code"], refused["ref"], refused["retryable"]) == ("overloaded", "m1", True)
        assert not [frame for frame in peer.handler.requests if isinstance(frame, Send)]


async def test_a_cancel_and_an_end_of_listening_are_heard_however_many_requests_wait() -> None:
    async with served() as peer:
        for _ in range(MAX_REQUESTS):
            peer.wire.client_sends({"type": "history"})
        assert (await peer.ask({"type": "cancel", "ref": "c1"}))["type"] == "cancelled"
        peer.wire.client_sends({"type": "audio.stop"})
        assert (await peer.ask({"type": "cancel", "mode": "rollback", "ref": "c2"}))["type"] == "cancelled"
        peer.handler.open.set()
        answered = [(await peer.wire.sent.get()).get("ref") for _ in range(MAX_REQUESTS + 1)]
        assert "c2" in answered  # what had to wait was waited for


async def test_a_cancel_that_finds_no_room_to_wait_says_so() -> None:
    async with served() as peer:
        for _ in range(MAX_CANCELS):
            assert (await peer.ask({"type": "cancel", "mode": "rollback"}))["type"] == "cancelled"
        assert (await peer.ask({"type": "cancel", "mode": "rollback", "ref": "c"}))["type"] == "cancelled"
        refused = await peer.wire.sent.get()
        assert (refused["code"], refused["ref"], refused["retryable"]) == ("overloaded", "c", True)
        assert (await peer.ask({"type": "cancel", "ref": "d"}))["type"] == "cancelled"
        assert (await peer.ask({"type": "ping", "ref": "e"}))["ref"] == "e"
        peer.handler.open.set()


async def test_requests_under_way_end_with_their_connection() -> None:
    async with served() as peer:
        peer.wire.client_sends({"type": "history"})
        await peer.ask({"type": "ping"})
        peer.wire.client_disconnects()
        await peer.ends()
        assert peer.handler.dropped == 1
        assert peer.wire.closed is None  # nobody is there to be told


@pytest.mark.parametrize(
    ("frame", "code", "ref"),
    [
        ({"type": "hello", "ref": "h"}, "bad_frame", "h"),
        (b'{"type":"ping"}', "bad_frame", None),
        ("no json", "bad_frame", None),
        ({**SEND, "params": {"temperature": 9}}, "bad_params", "m1"),
        ({"type": "delete", "conversation_id": "unknown", "ref": "d"}, "not_found", "d"),
        ({"type": "delete", "conversation_id": "other", "ref": "d"}, "internal", "d"),
        ({**SEND, "ref": "s"}, "internal", "s"),
    ],
)
async def test_a_refusal_is_for_its_sender_and_the_connection_stays(
    frame: dict[str, Any] | str | bytes, code: str, ref: str | None
) -> None:
    async with served() as peer:
        refused = await peer.ask(frame)
        assert (refused["type"], refused["code"], refused.get("ref")) == ("error", code, ref)
        assert "secret" not in refused["message"]
        assert (await peer.ask({"type": "ping"}))["type"] == "pong"


async def test_a_defect_is_logged_under_the_number_that_the_client_is_told(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.ERROR):
        async with served() as peer:
            sent_events = await peer.ask(SEND)
    number = sent_events["message"].split()[-1].rstrip(".")
    logged = caplog.text + capsys.readouterr().out
    assert number in logged
    assert "LookupError" in logged


async def test_twenty_bad_frames_in_a_minute_are_the_end() -> None:
    async with served() as peer:
        for _ in range(20):
            peer.wire.client_sends("no json")
        assert await peer.ends() == (1008, "20 bad frames in a minute.")
        assert [frame["code"] for frame in peer.wire.sent_events()] == ["bad_frame"] * 20


def test_bad_frames_are_forgiven_after_a_minute() -> None:
    strikes = ErrorBudget(limit=3, window_s=60.0)
    assert [strikes.add(now) for now in (0.0, 30.0, 60.0, 89.0, 150.0)] == [False, False, False, True, False]


async def test_a_reader_that_is_too_slow_is_cut_off() -> None:
    async with served(max_bytes=4096) as peer:
        peer.wire.reads.clear()
        for number in range(10):
            peer.connection.push(Pong(t=number))
        assert await peer.ends() == (1013, "The reader is too slow; reconnect.")
        assert peer.wire.sent.empty()


async def test_a_connection_that_is_shut_sends_what_waits_first() -> None:
    async with served() as peer:
        for number in range(5):
            peer.connection.push(Pong(t=number))
        peer.connection.shut(Close(CloseCode.DRAIN, "The server is shutting down; reconnect."))
        peer.connection.shut(Close(CloseCode.POLICY, "The first reason counts."))
        assert await peer.ends() == (1012, "The server is shutting down; reconnect.")
        assert [frame["t"] for frame in peer.wire.sent_events()] == [0, 1, 2, 3, 4]


async def test_a_stalled_reader_does_not_hold_up_the_end() -> None:
    async with served() as peer:
        peer.wire.reads.clear()
        peer.connection.push(Pong())
        peer.connection.shut(Close(CloseCode.DRAIN, "The server is shutting down; reconnect."))
        assert await peer.ends() == (1012, "The server is shutting down; reconnect.")


async def test_a_reader_that_was_late_is_told_in_order() -> None:
    async with served() as peer:
        peer.wire.reads.clear()
        for number in range(3):
            peer.connection.push(Pong(t=number))
        peer.wire.reads.set()
        peer.connection.push(Pong(t=3))  # before the writer could wake
        assert [(await peer.wire.sent.get())["t"] for _ in range(4)] == [0, 1, 2, 3]


async def test_the_way_of_text_to_the_socket_is_timed() -> None:
    async with served() as peer:
        peer.connection.publish(delta("a", 2), monotonic() - 7)
        peer.connection.publish(
            delta("b", 3, seq=3)
        )  # of another replica: nobody here knows when it was made
        delays = peer.limiters.bounds.delays
        assert sum(delays.counts) == 1
        assert 7 <= delays.seconds < 30


async def test_for_a_late_reader_text_is_as_old_as_its_oldest_part() -> None:
    async with served() as peer:
        peer.wire.reads.clear()
        for age, seq in ((9, 2), (4, 3)):
            peer.connection.publish(delta("x", seq, seq=seq), monotonic() - age)
        assert sum(peer.limiters.bounds.delays.counts) == 0
        peer.wire.reads.set()
        assert (await peer.wire.sent.get())["text"] == "xx"
        peer.connection.push(Pong())
        assert (await peer.wire.sent.get())["type"] == "pong"
        delays = peer.limiters.bounds.delays
        assert sum(delays.counts) == 1
        assert 9 <= delays.seconds < 30
    assert peer.connection.waiting_bytes == 0


async def test_nothing_is_taken_for_a_connection_that_is_gone() -> None:
    async with served() as peer:
        peer.wire.client_disconnects()
        await peer.ends()
        peer.connection.publish(Deleted(conversation_id="c"))
        assert peer.outbox.statistics().frames == 0


async def test_a_connection_tells_what_it_handed_and_takes_back_what_waits() -> None:
    async with served() as peer:
        sent = SentOffsets()
        peer.connection.publish(delta("seen"), sent=sent)
        assert (await peer.wire.sent.get())["text"] == "seen"
        peer.wire.reads.clear()
        peer.connection.publish(delta("unseen", 4, seq=3), sent=sent)
        assert sent.text == 4
        peer.connection.withdraw("t", 4, 0)
        peer.wire.reads.set()
        assert (await peer.ask({"type": "ping", "ref": "last"}))["ref"] == "last"
