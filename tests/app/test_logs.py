"""One line per event, for people or for machines, and nothing of what people write."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
from pathlib import Path
from typing import Literal

import pytest
import structlog

from app import logs
from engine.machine import Formatter
from tests.app.in_process_service import serving

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def fail(content: str) -> None:
    raise LookupError(content)


def test_machines_get_an_object_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="auto", level="info")
    structlog.get_logger("midstream.turn").info("turn ended", tokens=3, path=object)
    logging.getLogger("engine.process.client").warning("it is started %s", "again")
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert (ours["event"], ours["level"], ours["logger"], ours["tokens"]) == (
        "turn ended",
        "info",
        "midstream.turn",
        3,
    )
    assert (theirs["event"], theirs["level"]) == ("it is started again", "warning")


@pytest.mark.parametrize(("style", "stream"), [("auto", Terminal()), ("text", io.StringIO())])
def test_people_get_text_with_colours_on_a_terminal_alone(
    style: Literal["auto", "text"], stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(monkeypatch, stream)
    logs.set_up(style=style, level="info")
    structlog.get_logger(f"a.{style}").info("turn ended")
    assert "turn ended" in stream.getvalue()
    assert ("\033[" in stream.getvalue()) is stream.isatty()


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("logger", ["midstream.turn", "uvicorn.error"])
def test_a_traceback_shows_no_values(
    style: Literal["text", "json"], logger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither variables nor messages, whoever logs the exception; its places are there."""
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style=style, level="info")
    try:
        fail("private" + " words")
    except LookupError:
        if logger == "midstream.turn":
            structlog.get_logger(logger).exception("request failed")
        else:
            logging.getLogger(logger).exception("request failed")
    assert "LookupError" in stream.getvalue()
    assert "in fail" in stream.getvalue()
    assert "private words" not in stream.getvalue()


async def test_a_task_that_failed_unheard_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(content: str) -> None:
        fail(content)

    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="info")
    gc.collect()  # so that garbage of other tests is reported before
    stream.truncate(0)
    stream.seek(0)
    loop = asyncio.get_running_loop()
    task = loop.create_task(failing("private" + " words"))
    await asyncio.wait([task])
    del task
    gc.collect()
    loop.call_soon(fail, "private" + " words")
    await asyncio.sleep(0)
    unheard, callback = map(json.loads, stream.getvalue().splitlines())
    assert (unheard["event"], callback["event"]) == (
        "Task exception was never retrieved",
        "Exception in callback fail",
    )
    assert "private words" not in stream.getvalue()


def test_libraries_say_nothing_of_what_they_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """MCP's quotes servers, down to the ids of sessions; the HTTP server's has query strings."""
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="debug")
    structlog.get_logger("midstream.turn").debug("ours")
    logging.getLogger("redis").debug("EVALSHA private words")
    for quoting in ("mcp.client.streamable_http", "client"):
        logging.getLogger(quoting).critical("session id: private words")
    logging.getLogger("uvicorn.error").info('"WebSocket /v1/ws?token=secret" [accepted]')
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["ours"]


def test_what_is_less_severe_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="warning")
    structlog.get_logger("d").info("quiet")
    logging.getLogger("e").info("quiet")
    logging.getLogger("uvicorn.access").info("GET /?token=secret")
    structlog.get_logger("d").warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_no_value_of_a_line_commands_the_terminal(
    style: Literal["text", "json"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither C0 nor C1 characters pass, nor what reverses the order of text or begins a line; other scripts do."""
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style=style, level="info")
    peers = "http://ä.猫\x1b]0;x\x07\x9b2J\x9d\u202egro\r\nforged"
    log = structlog.get_logger("c")
    log.warning("refused", origin=peers, listed=[peers], by={peers: peers}, error=ValueError(peers))
    logging.getLogger("other").warning("not understood: %s", peers)
    shown = stream.getvalue()
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert (shown.count("\n"), shown.count("ä.猫")) == (2, 6)


async def test_an_origin_is_logged_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="text", level="info")
    async with serving(tmp_path) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        origin = b"http://\x9b31m\x9d0;x"
        writer.write(b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin + b"\r\n" + UPGRADE)
        assert b" 403 " in await reader.readline()
        writer.close()
    assert r"http://\x9b31m\x9d0;x" in stream.getvalue()


def test_the_engines_lines_do_not_command_the_terminal() -> None:
    record = logging.LogRecord("e", logging.WARNING, "", 1, "the model %s\n", ("\x1b[2J\x9b",), None)
    assert Formatter("engine: %(message)s").format(record) == r"engine: the model \x1b[2J\x9b\n"
