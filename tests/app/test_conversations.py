"""OpenAI's Conversations API by its own client: conversations are created, filled, read, used by responses, and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import Conversation, ConversationItem

from engine.scripted import FEATURES, ScriptedEngine, Thought
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_stored_responses import client_of, create_response, read

NAMED: dict[str, Any] = {"topic": "weather"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "call_1", "output": "Sun"}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    parts = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": parts, "status": "completed", "id": "msg_1"}


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


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


async def test_a_conversation_is_created_described_and_deleted(sdk: AsyncOpenAI) -> None:
    made = await sdk.conversations.create(metadata=NAMED)
    Conversation.model_validate(made.model_dump(), strict=True)
    assert (made.id.startswith("conv_"), made.object, made.metadata) == (True, "conversation", NAMED)
    assert await sdk.conversations.retrieve(made.id) == made
    assert await items_of(sdk, made) == []
    renamed = await sdk.conversations.update(made.id, metadata={"topic": "snow"})
    assert (renamed.created_at, renamed.metadata) == (made.created_at, {"topic": "snow"})
    assert await sdk.conversations.retrieve(made.id) == renamed
    gone = await sdk.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    for act in (sdk.conversations.retrieve, sdk.conversations.delete):
        with pytest.raises(openai.NotFoundError):
            await act(made.id)
    with pytest.raises(openai.NotFoundError):
        await create_response(sdk, "Hello?", conversation=made.id)


async def test_a_response_reads_the_items_of_its_conversation_and_becomes_some(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    before = [
        user("Weather?"),
        CALL,
        OUTPUT,
        assistant("Sunny."),
        user("And"),
        user("now?"),
        assistant("Rain."),
    ]
    made = await sdk.conversations.create(items=before)
    assert running.engine.requests == []
    running.engine.script([Thought("Hm."), "No."])
    response = await create_response(sdk, "Snow?", conversation=made.id)
    assert response.conversation is not None
    assert response.conversation.id == made.id
    assert read(running) == [
        ("user", "Weather?"),
        ("assistant", ""),
        ("tool", "Sun"),
        ("assistant", "Sunny."),
        ("user", "And\n\nnow?"),
        ("assistant", "Rain."),
        ("user", "Snow?"),
    ]
    assert running.engine.requests[0].messages[1].calls[0].call_id == "call_1"
    items = await items_of(sdk, made)
    assert [kind_and_text(item) for item in items] == [
        ("user", "Weather?"),
        ("function_call", "weather"),
        ("function_call_output", "Sun"),
        ("assistant", "Sunny."),
        ("user", "And\n\nnow?"),
        ("assistant", "Rain."),
        ("user", "Snow?"),
        ("reasoning", ""),
        ("assistant", "No."),
    ]
    assert [item.id for item in items[-2:]] == [item.id for item in response.output]
    assert await items_of(sdk, made, order="desc", limit=2) == items[::-1]
    for item in items:
        assert await sdk.conversations.items.retrieve(item.id, conversation_id=made.id) == item


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
