"""A request's id and its trace, from its headers to the log and to the engine's endpoint."""

from __future__ import annotations

import io
import json
import sys

import pytest

from app import logs
from engine.messages import Trace
from tests.app.in_process_service import InProcessService

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ID = "4bf92f3577b34da6a3ce929d0e0e4736"

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.set_up(style="json", level="info")
    return stream


def ends(log: io.StringIO) -> list[dict[str, str]]:
    """The log's lines of ended turns."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "turn ended"]


async def test_turns_of_a_socket_are_logged_by_what_its_handshake_said(
    log: io.StringIO, running: InProcessService
) -> None:
    named = {"X-Request-Id": "req-7", "traceparent": PARENT}
    async with running.socket(additional_headers=named) as socket, running.socket() as other:
        for one in (socket, other):
            await one.send(type="send", client_msg_id="m", content="hello")
            await one.until("done")
    assert [(line.get("request_id"), line.get("trace_id")) for line in ends(log)] == [
        ("req-7", ID),
        (None, None),
    ]
    assert [request.trace for request in running.engine.requests] == [Trace("req-7", PARENT), Trace()]
