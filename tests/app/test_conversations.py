"""OpenAI's Conversations API by its own client: conversations are created, filled, read, used by responses, and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import Conversation, ConversationItem

from engine.scripted import FEATURES, ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import client_of, create_response


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": parts, "status": "completed", "id": "msg_1"}


async def items_of(sdk: AsyncOpenAI, conversation: Conversation, **more: Any) -> list[ConversationItem]:
    params: dict[str, Any] = {"order": "asc"} | more
    return [item async for item in sdk.conversations.items.list(conversation.id, **params)]


def kind_and_text(item: Any) -> tuple[str, str]:
    """An item's kind, and its words."""
    if item.type == "message":
        return item.role, "".join(part.text for part in item.content)
    return item.type, getattr(item, "output", None) or getattr(item, "name", "")


async def test_each_added_turn_counts_as_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path, message_rate=1.0) as running, client_of(running) as sdk:
        made = await sdk.conversations.create(items=[user("a"), assistant("b")] * 2)
        with pytest.raises(openai.RateLimitError):
            await sdk.conversations.items.create(made.id, items=[user("c"), assistant("d")] * 10)
        assert [kind_and_text(item)[1] for item in await items_of(sdk, made)] == ["a", "b", "a", "b"]


async def test_the_last_item_is_deleted_and_no_other(sdk: AsyncOpenAI, running: InProcessService) -> None:
    made = await sdk.conversations.create(items=[user("One?"), assistant("One."), user("Two?")])
    await create_response(sdk, "Three?", conversation=made.id)
    while len(items := await items_of(sdk, made)) > 1:
        with pytest.raises(openai.ConflictError):
            await sdk.conversations.items.delete(items[0].id, conversation_id=made.id)
        assert (await sdk.conversations.items.delete(items[-1].id, conversation_id=made.id)).id == made.id
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.items.retrieve(items[-1].id, conversation_id=made.id)
        assert await items_of(sdk, made) == items[:-1]
    await sdk.conversations.items.create(made.id, items=[assistant("Won.")])
    assert [kind_and_text(item)[1] for item in await items_of(sdk, made)] == ["One?", "Won."]
    assert len(running.engine.requests) == 1


async def test_an_item_shows_its_image(tmp_path: Path) -> None:
    engine = ScriptedEngine(features=(*FEATURES, "images"))
    url = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        shown = {"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}
        made = await sdk.conversations.create(items=[shown])  # type: ignore[list-item]
        item: Any = (await items_of(sdk, made))[0]
        assert item.content[0].image_url == url
        await create_response(sdk, "What is it?", conversation=made.id)
        assert len(engine.requests[0].messages[0].images) == 1
