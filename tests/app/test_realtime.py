"""`/v1/realtime` over real sockets and a real store: replies and items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.limits.bounds import BAD_FRAMES
from tests.app.in_process_service import InProcessService, Socket
from tests.app.realtime_client import LONG, LONGEST, create, paced, session, turn


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with paced(tmp_path) as service:
        yield service


@pytest.fixture
async def socket(running: InProcessService) -> AsyncIterator[Socket]:
    async with session(running) as socket:
        yield socket


async def test_a_cancel_right_behind_its_reply_finds_it(socket: Socket, running: InProcessService) -> None:
    running.engine.script(LONG)
    await create(socket, "Go on.")
    await socket.send(type="response.create")
    await socket.send(type="response.cancel")
    done = (await socket.until("response.done"))[-1]
    assert done["response"]["status"] == "cancelled"


async def test_what_comes_behind_a_deletion_comes_in_its_order(
    socket: Socket, running: InProcessService
) -> None:
    """All in one burst: the reply answers the question alone, and the cancel finds it."""
    reply = (await turn(socket, "One?"))[-1]["response"]["output"][0]["id"]
    running.engine.script(LONG)
    content = [{"type": "input_text", "text": "Later."}]
    later = {"type": "message", "id": "later", "role": "user", "content": content}
    await socket.send(type="conversation.item.delete", item_id=reply)
    await socket.send(type="response.create", response=LONGEST)
    await socket.send(type="response.cancel")
    await socket.send(type="conversation.item.create", item=later)
    events = await socket.until("response.done")
    assert events[0]["type"] == "conversation.item.deleted"
    assert events[-1]["response"]["status"] == "cancelled"
    await socket.send(type="conversation.item.delete", item_id="later")  # as only what waits can be
    await socket.send(type="session.update", session={})
    reported = [event["type"] for event in await socket.until("session.updated")]
    assert "conversation.item.deleted" in reported


async def test_what_waits_has_a_bound(socket: Socket) -> None:
    for text, times, code in (("x" * 30_000, 8, "content_too_long"), ("?", 92, "too_many_items")):
        for _ in range(times):
            await create(socket, text)
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        refused = await socket.ask(type="conversation.item.create", item=item)
        assert refused["error"]["code"] == code


async def test_who_speaks_another_language_is_sent_away(socket: Socket) -> None:
    for _ in range(BAD_FRAMES):
        await socket.opened.send("hello?")
    assert await socket.closed() == (1008, f"{BAD_FRAMES} bad frames in a minute.")
