"""Images over `/v1/realtime`: shown to the model where they stand, told back as OpenAI tells them, kept with their message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.messages import Message
from engine.scripted import FEATURES, ScriptedEngine
from engine.vision.image import Detail, Image
from tests.app.in_process_service import Frame, InProcessService, Socket, serving
from tests.app.realtime_client import LONG, LONGEST, create, prompts, session, turn
from tests.app.test_attachments import large, vision_engine
from tests.sample_images import JPEG, PNG, Picture
from tests.sessions.store.storage_quotas import MIB


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, ScriptedEngine(features=(*FEATURES, "images"), pace_s=0.001)) as service:
        yield service


@pytest.fixture
async def socket(running: InProcessService) -> AsyncIterator[Socket]:
    async with session(running, client_id="ann") as socket:
        yield socket


def input_image(url: str, **more: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": url, **more}


def text(words: str) -> dict[str, str]:
    return {"type": "input_text", "text": words}


def item(*parts: dict[str, str], **more: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [*parts], **more}


def expected_image(image: Image, detail: str = "auto", *, url: bool = True) -> dict[str, Any]:
    """An image as clients are told of it."""
    part = {"type": "input_image", "image_url": image.url if url else None, "detail": detail}
    return {**part, "attachment_id": image.digest}


def looked_at(image: Image, at: int = 0, detail: Detail = "") -> Image:
    return msgspec.structs.replace(image, at=at, detail=detail)


async def added(socket: Socket, *parts: dict[str, str], **more: str) -> Frame:
    return (await create(socket, "", item={"content": [*parts], **more}))["item"]


async def test_what_comes_behind_an_image_comes_in_its_order(
    socket: Socket, running: InProcessService
) -> None:
    """All in one burst: the reply answers what came before it, and the cancel finds it."""
    running.engine.script(LONG)
    for number, part in enumerate((input_image(PNG.url), text("What is this?"), input_image(JPEG.url))):
        await socket.send(type="conversation.item.create", item=item(part, id=f"item_{number}"))
    await socket.send(type="response.create", response=LONGEST)
    await socket.send(type="response.cancel")
    await socket.send(type="conversation.item.create", item=item(text("Later."), id="later"))
    events = [await socket.next() for _ in range(6)]
    assert [event["item"]["id"] for event in events] == [f"item_{number // 2}" for number in range(6)]
    rest = await socket.until("response.done")
    assert rest[-1]["response"]["status"] == "cancelled"
    await socket.send(type="conversation.item.delete", item_id="later")  # as only what waits can be
    assert (await socket.next("conversation.item.deleted"))["item_id"] == "later"
    await turn(socket, "And?")
    first, *_ = prompts(running.engine)[-1]
    assert first.content.startswith("What is this?")
    assert first.images == (PNG.image, looked_at(JPEG.image, len("What is this?")))


async def test_a_full_store_refuses_an_image_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path, vision_engine(), store_memory=16 * MIB) as running,
        session(running, client_id="ann") as socket,
    ):
        for number in range(16):
            new = item(input_image(Picture(large(number, MIB // 2)).url))
            await socket.send(type="conversation.item.create", item=new)
            if (answer := await socket.next())["type"] == "error":
                break
            await socket.next("conversation.item.done")
        assert answer["error"]["code"] == "store_full"
        await create(socket, "Hello!")


async def test_where_an_image_stood_is_forgotten_with_its_message(
    running: InProcessService, socket: Socket
) -> None:
    """Another message shows it where its own client says: before the text, on the native socket."""
    await added(socket, text("Look at this:"), input_image(PNG.url))
    async with running.socket({"client_id": "ann"}) as native:
        frame = {"client_msg_id": "m", "conversation_id": "other", "content": "And this?"}
        await native.send(type="send", attachments=[PNG.image.digest], **frame)
        await native.until("done")
    assert prompts(running.engine) == [(Message("user", "And this?", images=(PNG.image,)),)]


async def test_an_image_that_was_uploaded_is_named(running: InProcessService, socket: Socket) -> None:
    """So it may be larger than an event."""
    async with httpx.AsyncClient(base_url=running.url) as client:
        for who in ("ann", "bob"):
            await client.post(
                "/v1/attachments", content=(PNG if who == "ann" else JPEG).data, params={"client_id": who}
            )
    mine = {"type": "input_image", "attachment_id": PNG.image.digest, "detail": "high"}
    assert (await added(socket, mine))["content"] == [expected_image(PNG.image, "high", url=False)]
    theirs = {"type": "input_image", "attachment_id": JPEG.image.digest}
    error = (await socket.ask(type="conversation.item.create", item=item(theirs)))["error"]
    assert (error["code"], error["param"]) == ("not_found", "item.content[0].attachment_id")
    await socket.send(type="response.create")
    await socket.next("response.done")
    assert prompts(running.engine) == [(Message("user", "", images=(looked_at(PNG.image, 0, "high"),)),)]
