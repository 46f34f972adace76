"""One line per event, for people or for machines, and nothing of what people write."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
from typing import Literal

import pytest
import structlog

from app.operations import logs

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


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


def test_people_get_text_with_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, Terminal())
    logs.set_up(style="auto", level="info")
    structlog.get_logger("a").info("turn ended")
    assert "turn ended" in stream.getvalue()
    assert "\033[" in stream.getvalue()


def test_text_in_a_file_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="text", level="info")
    structlog.get_logger("b").info("turn ended")
    assert "turn ended" in stream.getvalue()
    assert "\033[" not in stream.getvalue()


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


def test_libraries_say_nothing_at_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="debug")
    structlog.get_logger("midstream.turn").debug("ours")
    logging.getLogger("redis").debug("EVALSHA private words")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["ours"]


@pytest.mark.parametrize("logger", ["mcp.client.streamable_http", "client"])
def test_the_library_of_mcp_says_nothing(logger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It quotes servers, down to the ids of sessions; our own lines say what matters."""
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="debug")
    logging.getLogger(logger).critical("session id: private words")
    assert not stream.getvalue()


def test_what_is_less_severe_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="warning")
    structlog.get_logger("d").info("quiet")
    logging.getLogger("e").info("quiet")
    logging.getLogger("uvicorn.access").info("GET /?token=secret")
    structlog.get_logger("d").warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_lines_of_the_server_that_hold_query_strings_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = written(monkeypatch, io.StringIO())
    logs.set_up(style="json", level="debug")
    logging.getLogger("uvicorn.error").info('"WebSocket /v1/ws?token=secret" [accepted]')
    assert not stream.getvalue()
