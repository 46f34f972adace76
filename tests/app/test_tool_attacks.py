"""Malicious tools at the endpoints of a whole service: each call has a clear end, and another client's reply goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from engine.scripted import Call, ScriptedEngine
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.e2e.websocket_client import Frame, assert_no_hole, text_of
from tests.sessions.tools.mcp_servers import Rogue, listening
from tests.sessions.tools.test_rogue_servers import (
    endless_line,
    endless_progress,
    hang,
    huge_result,
    streaming,
)

HELLO = {"features": ["tools"]}
OFFER = [{"name": "r_work", "where": "server"}]
WORDS = "word " * 200
PACE_S = 0.01
SERVER = """
[[mcp_server]]
name = "rogue"
url = "{url}"
prefix = "r_"
tools = ["work"]
never_ask = ["work"]
call_s = {call_s}
max_response_bytes = 65536
"""


@asynccontextmanager
async def attacked(folder: Path, rogue: Rogue, *, call_s: float = 30.0) -> AsyncIterator[InProcessService]:
    """A service that has a rogue's tool."""
    async with listening(rogue) as url:
        file = folder / "tools.toml"
        file.write_text(SERVER.format(url=url, call_s=call_s))
        async with serving(folder, ScriptedEngine(pace_s=PACE_S), config=str(file)) as running:
            yield running


@asynccontextmanager
async def neighbour(running: InProcessService) -> AsyncIterator[None]:
    """Another client reads a reply meanwhile, to its end and without a hole."""
    async with running.socket(HELLO | {"client_id": "bob"}) as socket:
        running.engine.script(WORDS)
        await socket.send(type="send", client_msg_id="m", content="Go on.", params={"max_new_tokens": 4000})
        started = [await socket.next("accepted"), await socket.next("delta")]
        yield
        reported = started + await socket.until("done")
        assert (reported[-1]["reason"], text_of(reported, reported[-1]["turn_id"])) == ("stop", WORDS)
        assert_no_hole(reported)


async def call(socket: Socket, running: InProcessService) -> list[Frame]:
    """Calls the rogue's tool; returns the events until that turn ends."""
    running.engine.script([Call("r_work", "{}")])
    await socket.send(type="send", client_msg_id="call", content="Work.", tools=OFFER)
    return await socket.until("done")


async def lie(message: dict[str, Any]) -> Any:
    return {"content": "not a list", "isError": "perhaps"}


@pytest.mark.parametrize(
    ("rogue", "state", "words"),
    [
        (Rogue(tools_call=hang), "lost", "did not answer within 1 s"),
        (Rogue(tools_call=streaming(endless_progress)), "lost", "did not answer within 1 s"),
        (Rogue(tools_call=streaming(endless_line)), "done", "more bytes than are read"),
        (Rogue(tools_call=streaming(huge_result)), "done", "more bytes than are read"),
        (Rogue(tools_call=lie), "done", ""),
    ],
    ids=["hangs", "reports without end", "floods", "says too much", "lies"],
)
async def test_a_rogue_ends_its_own_call_alone(tmp_path: Path, rogue: Rogue, state: str, words: str) -> None:
    """The model reads the reason, and goes on."""
    async with (
        attacked(tmp_path, rogue, call_s=1.0) as running,
        neighbour(running),
        running.socket(HELLO | {"client_id": "ann"}) as socket,
    ):
        reported = await call(socket, running)
        running.engine.script("I could not.")
        reported += await socket.until("done")
    ended = next(one for one in reported if one["type"] == "tool_state" and one["state"] in ("done", "lost"))
    assert (ended["state"], ended.get("content")) == (state, None)
    assert words in ended["error"]
    assert text_of(reported, reported[-1]["turn_id"]) == "I could not."


async def test_results_beyond_their_bounds_are_refused(tmp_path: Path) -> None:
    """A frame of 10 MB ends its own connection, a body of 10 MB its own request."""
    async with serving(tmp_path, ScriptedEngine(pace_s=PACE_S)) as running, neighbour(running):
        async with running.socket(HELLO | {"client_id": "ann"}) as socket:
            running.engine.script([Call("look", "{}")])
            await socket.send(type="send", client_msg_id="m", content="Look.", tools=[{"name": "look"}])
            call_id = (await socket.until("done"))[-1]["open"][0]
            result = {"type": "tool_result", "call_id": call_id}
            with suppress(ConnectionClosed):  # before all of it is sent
                await socket.send(content="x" * 10_000_000, **result)
            assert (await socket.closed())[0] == 1009
        reported = {"role": "tool", "tool_call_id": "a", "content": "x" * 10_000_000}
        body = json.dumps({"model": "midstream-demo", "messages": [reported]}).encode()
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{running.url}/v1/chat/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
