"""The answer to each client frame, over a real socket and a real store."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from connections.native.handler import FrameHandler
from tests.app.in_process_service import Frame, InProcessService, Socket

LONG = "word " * 20_000


async def send_and_wait(socket: Socket, content: str = "Hello.", **fields: Any) -> list[Frame]:
    """Send a message; return all frames up to its end."""
    await socket.send(
        type="send", client_msg_id=fields.pop("client_msg_id", content), content=content, **fields
    )
    return await socket.until("done")


async def begin(running: InProcessService, socket: Socket, **fields: Any) -> Frame:
    """Send a message whose reply is long; return `accepted` once text comes."""
    running.engine._pace_s = 0.002
    running.engine.script(LONG)
    await socket.send(**{"type": "send", "client_msg_id": "long", "content": "Go on."} | fields)
    accepted = await socket.next("accepted")
    await socket.next("delta")
    return accepted


SEND = {"type": "send", "client_msg_id": "m", "content": "x"}


async def test_bad_input_is_told_to_its_sender_alone(running: InProcessService) -> None:
    """Each refusal: `tests/transcripts/native/refusals.yaml`."""
    async with running.socket() as reader, running.socket() as sender:
        await begin(running, reader)
        refused = await sender.ask(**SEND | {"content": "word " * 5_000}, ref="r1")
        assert (refused["code"], refused["ref"]) == ("context_overflow", "r1")
        for message in (b"\x00\x01", "[" * 5_000 + "]" * 5_000):
            await sender.opened.send(message)
            assert (await sender.next())["code"] == "bad_frame"
        assert (await sender.ask(type="ping"))["type"] == "pong"
        assert (await reader.next())["type"] == "delta"


async def test_a_frame_of_the_largest_size_is_read_and_a_larger_one_closes_with_a_reason(
    running: InProcessService,
) -> None:
    async with running.socket() as socket, running.socket() as other:
        frame = json.dumps({"type": "ping", "t": ""})
        await socket.opened.send(frame.replace('""', f'"{"x" * (65_536 - len(frame))}"'))
        assert (await socket.next())["type"] == "pong"
        await socket.opened.send("x" * 65_537)
        code, reason = await socket.closed()
        assert (code, "65536" in reason, "POST /v1/attachments" in reason) == (1009, True, True)
        assert (await other.ask(type="ping"))["type"] == "pong"


async def test_a_reader_that_stops_reading_is_let_go_and_nobody_else_notices(
    running: InProcessService,
) -> None:
    """Its memory is bounded, and its socket is not kept until it reads again."""
    running.engine.script(["x" * 50_000] * 400)
    sockets = running.service._server.server_state.connections
    tight = await running.small_buffer_socket()
    async with running.socket() as other, running.socket(sock=tight, max_queue=1) as stalled:
        await stalled.send(type="send", client_msg_id="m", content="Much, please.")
        while len(sockets) == 2:
            assert (await other.ask(type="ping"))["type"] == "pong"
        assert (await stalled.closed())[0] in (1006, 1013)  # there may be no room to say why


@pytest.mark.parametrize("unread", [0, 600])
async def test_a_peer_that_answers_no_ping_is_let_go(unread: int, running: InProcessService) -> None:
    """Even if unread bytes are in the way of the close. `unread`: those bytes, in KiB."""
    config = running.service._server.config
    config.ws_ping_interval, config.ws_ping_timeout = 0.1, 0.3
    running.engine.script(["x" * 1024] * unread)
    async with running.socket(
        sock=await running.small_buffer_socket(), max_queue=1, ping_interval=None
    ) as silent:
        await silent.send(type="send", client_msg_id="m", content="Much, please.")
        for _ in range(20):
            await silent.send(type="ping")  # their answers fill the client's buffers
        await running.service._lifecycle._manager.emptied()
        assert (await silent.closed())[0] == (1006 if unread else 1011)


async def test_a_defect_of_a_connection_closes_it_alone(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a secret of the service")

    async with running.socket() as other:
        with monkeypatch.context() as patched:
            patched.setattr(FrameHandler, "__init__", broken)
            async with connect(running.ws_url) as opened:
                await opened.send('{"type":"hello"}')
                assert await Socket(opened).closed() == (1011, "An internal error; reconnect.")
        assert (await other.ask(type="ping"))["type"] == "pong"
