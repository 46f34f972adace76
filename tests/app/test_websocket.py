"""Where our WebSocket protocol differs from uvicorn's: clients' mistakes are no errors, and peers that don't read are reset."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.app.in_process_service import InProcessService, serving
from tests.chaos.minimal_websocket import CLOSE, MinimalWebSocket, framed

NO_TEXT = b"\xff\xfe"


def warned(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged as a warning or worse."""
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_text_that_is_no_utf_8_closes_and_is_no_error_of_ours(
    running: InProcessService, caplog: pytest.LogCaptureFixture
) -> None:
    one = await MinimalWebSocket.connect(("127.0.0.1", running.port))
    await one.send_hello()
    await one.write(framed(NO_TEXT) + framed(NO_TEXT))
    opcode, payload = await one.read()
    one.close()
    assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1007)
    assert warned(caplog) == []


async def test_text_in_fragments_may_be_cut_within_a_character(running: InProcessService) -> None:
    async with running.socket() as socket:
        await socket.opened.send(['{"type":"ping","t":"', "é", '"}'])
        assert (await socket.next())["t"] == "é"


async def test_an_answer_in_place_of_a_handshake_is_no_error_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, allowed_hosts=("chat.example.org",)) as running:
        with pytest.raises(InvalidStatus):
            await connect("ws://other.example.org/v1/ws", host="127.0.0.1", port=running.port)
    assert warned(caplog) == []


@pytest.mark.parametrize("words", [3_000, 100_000], ids=["in the kernel", "in the server too"])
async def test_a_peer_that_stopped_reading_is_reset(words: int, running: InProcessService) -> None:
    """A close would wait for the peer, and the kernel would keep what it has not read."""
    config = running.service._server.config
    config.ws_ping_interval = config.ws_ping_timeout = 0.1
    running.engine.script(["word " * words])
    one = await MinimalWebSocket.connect(("127.0.0.1", running.port), receive_buffer=4096)
    await one.send_hello()
    await one.put(type="send", client_msg_id="m", content="Go.")
    await one.until_over(within_s=10)
    await running.service._lifecycle._manager.emptied()
    one.close()
