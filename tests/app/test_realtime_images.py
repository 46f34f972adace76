"""Images over `/v1/realtime`: shown to the model where they stand, told back as OpenAI tells them, kept with their message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.messages import Message
from engine.scripted import FEATURES, ScriptedEngine
from tests.app.in_process_service import InProcessService, Socket, serving
from tests.app.realtime_client import create, prompts, session
from tests.app.test_attachments import large, vision_engine
from tests.sample_images import PNG, Picture
from tests.sessions.store.storage_quotas import MIB


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcessService]:
    async with serving(tmp_path, ScriptedEngine(features=(*FEATURES, "images"), pace_s=0.001)) as service:
        yield service


@pytest.fixture
async def socket(running: InProcessService) -> AsyncIterator[Socket]:
    async with session(running, client_id="ann") as socket:
        yield socket


def input_image(url: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": url}


def item(part: dict[str, str]) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [part]}


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
    content = [{"type": "input_text", "text": "Look at this:"}, input_image(PNG.url)]
    await create(socket, "", item={"content": content})
    async with running.socket({"client_id": "ann"}) as native:
        frame = {"client_msg_id": "m", "conversation_id": "other", "content": "And this?"}
        await native.send(type="send", attachments=[PNG.image.digest], **frame)
        await native.until("done")
    assert prompts(running.engine) == [(Message("user", "And this?", images=(PNG.image,)),)]
