"""Items with images above the bound of a frame over `/v1/realtime`: few at once, in time, and nothing else that is as large."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from connections import limiters
from engine.scripted import FEATURES, ScriptedEngine
from sessions.limits.bounds import LARGE_MESSAGE_BYTES, MAX_FRAME_BYTES
from sessions.store.images import Images
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.app.realtime_client import prompts, session
from tests.sample_images import PNG, Picture, chunk, png

LARGE = Picture(png(more=chunk(b"teXt", bytes(600_000))))
PARTS = [{"type": "input_image", "image_url": LARGE.url}, {"type": "input_text", "text": "What is this?"}]
CREATE = "conversation.item.create"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, ScriptedEngine(features=(*FEATURES, "images"))) as service:
        yield service


@asynccontextmanager
async def unfinished_message(socket: Socket) -> AsyncIterator[None]:
    """Within it a large message comes, and does not end."""
    is_sent = asyncio.Event()

    async def parts() -> AsyncIterator[str]:
        yield "x" * (MAX_FRAME_BYTES + 1)
        is_sent.set()
        await asyncio.Future()

    sending = asyncio.create_task(socket.opened.send(parts()))
    await is_sent.wait()
    yield
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending


async def show(socket: Socket, *parts: dict[str, str]) -> dict[str, Any]:
    await socket.send(type=CREATE, item={"type": "message", "role": "user", "content": parts or PARTS})
    return await socket.next("conversation.item.added")


async def test_a_large_image_comes_in_the_item_itself(running: InProcessService) -> None:
    """It is told by its id alone: twice as many bytes would wait for a late reader otherwise."""
    async with session(running) as socket:
        for _ in range(2):
            added = await show(socket)
            (image, _) = added["item"]["content"]
            assert (image["image_url"], image["attachment_id"]) == (None, LARGE.image.digest)
        await socket.send(type="response.create")
        await socket.next("response.done")
    (message,) = prompts(running.engine)[-1]
    assert [image.data for image in message.images] == [LARGE.data, LARGE.data]


async def test_what_is_larger_still_is_told_where_to_send_it(running: InProcessService) -> None:
    async with session(running) as socket:
        await socket.opened.send(json.dumps({"type": CREATE, "event_id": "x" * LARGE_MESSAGE_BYTES}))
        code, reason = await socket.closed()
        assert (code, str(LARGE_MESSAGE_BYTES) in reason, "POST /v1/attachments" in reason) == (
            1009,
            True,
            True,
        )


SMALL: tuple[dict[str, Any], ...] = (
    {"type": "session.update", "session": {"type": "realtime", "instructions": "é" * 40_000}},
    {"type": "input_audio_buffer.append", "audio": "A" * 80_000},
    {
        "type": CREATE,
        "item": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "x" * 80_000}],
        },
    },
)


async def test_nothing_else_may_be_as_large(running: InProcessService) -> None:
    """A session would keep it, or have it wait."""
    async with session(running) as socket:
        for event in SMALL:
            await socket.opened.send(json.dumps(event | {"event_id": "mine"}, ensure_ascii=False))
            error = (await socket.next("error"))["error"]
            assert (str(MAX_FRAME_BYTES) in error["message"], error["event_id"]) == (True, "mine")
        assert (await show(socket))["type"] == "conversation.item.added"


async def test_a_large_item_has_few_parts(running: InProcessService) -> None:
    """They are counted before any object is made: a megabyte of empty ones would take a hundred."""
    async with session(running) as socket:
        await socket.opened.send(json.dumps({"type": CREATE, "item": {"content": [*PARTS, *[{}] * 60_000]}}))
        assert "too many" in (await socket.next("error"))["error"]["message"]
        assert (await show(socket))["type"] == "conversation.item.added"


async def test_few_bytes_of_images_wait_for_the_store(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends more than it takes in is told so; nothing that waits is lost."""
    monkeypatch.setattr("connections.api.realtime.endpoint.MAX_PENDING_IMAGE_BYTES", 2 * len(LARGE.url) - 1)
    is_well, keep = asyncio.Event(), Images.keep

    async def late(*args: Any, **options: Any) -> None:
        await is_well.wait()
        await keep(*args, **options)

    monkeypatch.setattr(Images, "keep", late)
    async with session(running) as socket:
        for _ in range(2):
            await socket.send(type=CREATE, item={"type": "message", "role": "user", "content": PARTS})
        assert "still being stored" in (await socket.next("error"))["error"]["message"]
        is_well.set()
        await socket.next("conversation.item.added")


async def test_few_large_messages_come_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all connections have as many places as the large bodies of requests. Small ones need none."""
    monkeypatch.setattr(limiters, "LARGE_BODIES", 1)
    async with serving(tmp_path, ScriptedEngine(features=(*FEATURES, "images"))) as running:
        async with session(running) as first, unfinished_message(first), session(running) as second:
            assert (await show(second, {"type": "input_image", "image_url": PNG.url}))["item"]
            await second.send(type=CREATE, item={"content": PARTS})
            code, reason = await second.closed()
            assert (code, "POST /v1/attachments" in reason) == (1013, True)
        async with session(running) as third, session(running) as fourth:
            for one in (third, fourth, third):
                assert (await show(one))["type"] == "conversation.item.added"


async def test_what_is_no_larger_in_the_end_keeps_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of its last fragment, or a ping before that, counted as if it were large."""
    monkeypatch.setattr(limiters, "LARGE_BODIES", 1)
    engine = ScriptedEngine(features=(*FEATURES, "images"))
    async with serving(tmp_path, engine) as running, session(running) as first, session(running) as second:
        await first.opened.send(["x" * (MAX_FRAME_BYTES - 1)])  # an empty fragment ends it
        await first.next("error")
        assert (await show(second))["type"] == "conversation.item.added"


async def test_a_large_message_comes_in_time(
    running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who never ends one would hold its place for good."""
    monkeypatch.setattr("connections.websocket_protocol.LARGE_MESSAGE_S", 0.01)
    async with session(running) as socket, unfinished_message(socket):
        assert await socket.closed() == (1008, "Large messages have 0.01 s to arrive.")
