"""Replies of the bundled model are sent at a pace that a person can read, and nobody else waits for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.scripted import ScriptedEngine
from tests.app.endpoints import ENDPOINTS, Endpoint, open_reply
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_frames import send_and_wait
from tests.jwt_signing import KEY

LONG = "word " * 2000
AT_ONCE = {"chars_per_s": 0}
SLOWEST = 0.01
"""A character in a hundred seconds."""
HEADERS = {"Authorization": f"Bearer {KEY}"}
STREAMS = [way for way in ENDPOINTS if way.name != "realtime"]
MAY_COME_WHOLE = [way for way in STREAMS if way.name in ("chat completions", "messages", "responses")]


async def other_client_gets_reply(running: InProcessService) -> None:
    """Somebody else gets a whole reply. By then the engine has made those that were asked for before."""
    async with running.socket({"client_id": "bob"}) as socket:
        *_, done = await send_and_wait(socket, "Hello.", params=AT_ONCE)
    assert done["reason"] == "stop"
    assert running.engine.statistics().running == 0


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ({}, {}),
        ({"chars_per_s": 50.0}, {}),
        ({"chars_per_s": 50.0, "model": "another"}, {}),
        ({"chars_per_s": 0.0, "model": "another"}, {"chars_per_s": 100}),
    ],
)
async def test_a_reply_is_stopped_where_it_was_read(
    settings: dict[str, Any], params: dict[str, Any], tmp_path: Path
) -> None:
    """The engine wrote all of it long ago; the history has what was sent."""
    chosen = {"chars_per_s": None, **settings}
    async with (
        serving(tmp_path, ScriptedEngine(reply=LONG), **chosen) as running,
        running.socket({"client_id": "ann"}) as socket,
    ):
        await socket.send(type="send", client_msg_id="m", content="Go on.", params=params)
        await socket.next("accepted")
        await other_client_gets_reply(running)
        await socket.send(type="cancel")
        *reported, done = await socket.until("done")
        seen = "".join(frame["text"] for frame in reported if frame["type"] == "delta")
        assert (done["reason"], done["chars"]) == ("cancelled", len(seen))
        assert 0 < len(seen) < len(LONG)
        page = await socket.ask(type="history")
        assert page["messages"][-1]["content"] == seen


@pytest.mark.parametrize(
    ("settings", "params"),
    [({}, AT_ONCE), ({"chars_per_s": 0.0}, {}), ({"model": "another"}, {})],
)
async def test_a_reply_comes_as_fast_as_it_is_made(
    settings: dict[str, Any], params: dict[str, Any], tmp_path: Path
) -> None:
    chosen = {"chars_per_s": None, **settings}
    async with serving(tmp_path, ScriptedEngine(reply=LONG), **chosen) as running, running.socket() as socket:
        await socket.send(type="send", client_msg_id="m", content="Go on.", params=params)
        await socket.next("accepted")
        await other_client_gets_reply(running)
        done = await socket.next("done")
        assert (done["reason"], done["chars"]) == ("stop", len(LONG))


@pytest.mark.parametrize("way", STREAMS, ids=lambda way: way.name.replace(" ", "-"))
async def test_every_door_that_streams_has_the_pace(way: Endpoint, tmp_path: Path) -> None:
    engine = ScriptedEngine(reply="one two")
    async with serving(tmp_path, engine, chars_per_s=SLOWEST) as running, open_reply(running, way) as reply:
        assert await reply.text("o") == "o"
        await other_client_gets_reply(running)
        assert running.service._sessions.statistics().turns == 1


@pytest.mark.parametrize("way", MAY_COME_WHOLE, ids=lambda way: way.name.replace(" ", "-"))
async def test_an_answer_that_comes_whole_has_no_pace(way: Endpoint, tmp_path: Path) -> None:
    engine = ScriptedEngine(reply="one two")
    body = way.frames_for("", "Hello?")[0] | {"stream": False}
    async with (
        serving(tmp_path, engine, chars_per_s=SLOWEST) as running,
        httpx.AsyncClient(base_url=running.url, headers=HEADERS, timeout=60) as client,
    ):
        answer = await client.post(way.path, json=body)
        assert "one two" in json.dumps(answer.json())
