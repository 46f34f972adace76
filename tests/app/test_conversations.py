"""OpenAI's Conversations API by its own client: conversations are created, filled, read, used by responses, and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import Conversation, ConversationItem

from engine.scripted import FEATURES, Call, ScriptedEngine, Thought
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_stored_responses import WEATHER, client_of, create_response, read, wait_for_requests
from tests.jwt_signing import KEY

OTHER_KEY = KEY[::-1]
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


async def test_items_are_added_one_by_one_as_an_agent_does(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    made = await sdk.conversations.create()
    steps: list[list[Any]] = [
        [user("Weather?")],
        [CALL],
        [OUTPUT],
        [assistant("Sunny.")],
        [assistant("Very.")],
        [user("Thanks.")],
        [user("Really.")],
    ]
    added: list[str] = []
    for step in steps:
        page = await sdk.conversations.items.create(made.id, items=step)
        added += [kind_and_text(item)[1] for item in page.data]
    assert added == ["Weather?", "weather", "Sun", "Sunny.", "Sunny.\n\nVery.", "Thanks.", "Really."]
    assert [kind_and_text(item)[1] for item in await items_of(sdk, made)] == [
        "Weather?",
        "weather",
        "Sun",
        "Sunny.\n\nVery.",
        "Thanks.",
        "Really.",
    ]
    assert running.engine.requests == []
    await create_response(sdk, "Bye.", conversation=made.id)
    assert [role for role, _ in read(running)] == ["user", "assistant", "tool", "assistant", *["user"] * 3]


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


async def test_conversations_are_their_owners(sdk: AsyncOpenAI, running: InProcessService) -> None:
    made = await sdk.conversations.create(items=[user("Mine.")])
    item = (await items_of(sdk, made))[0]
    async with client_of(running, OTHER_KEY) as other:
        for act in (
            other.conversations.retrieve(made.id),
            other.conversations.update(made.id, metadata={}),
            other.conversations.delete(made.id),
            other.conversations.items.create(made.id, items=[user("Mine, too.")]),
            other.conversations.items.retrieve(item.id, conversation_id=made.id),
            other.conversations.items.delete(item.id, conversation_id=made.id),
            create_response(other, "Hello?", conversation=made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await act
        with pytest.raises(openai.NotFoundError):
            await items_of(other, made)
    assert await items_of(sdk, made) == [item]


async def test_conversations_of_all_endpoints_have_items(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("One.")
    await create_response(sdk, "First?", conversation="mine")
    assert (await sdk.conversations.retrieve("mine")).metadata == {}
    await sdk.conversations.items.create("mine", items=[user("Second?"), assistant("Two.")])
    mine = await sdk.conversations.update("mine", metadata=NAMED)
    assert [kind_and_text(item)[1] for item in await items_of(sdk, mine)] == [
        "First?",
        "One.",
        "Second?",
        "Two.",
    ]
    await sdk.conversations.delete("mine")
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.retrieve("mine")


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


@pytest.mark.parametrize(
    "items",
    [
        [assistant("Hello!")],
        [{"role": "developer", "content": "Be kind."}, user("Hello!")],
        [user("Weather?"), CALL, user("Well?")],
        [user("Weather?"), CALL, CALL],
        [user("Weather?"), OUTPUT],
        [user("Weather?"), CALL, OUTPUT, OUTPUT],
        [user("Weather?"), CALL | {"call_id": "call 1"}],
        [user("")],
        [user("x")] * 101,
    ],
)
async def test_items_that_no_conversation_can_have_are_refused_and_leave_nothing(
    sdk: AsyncOpenAI, items: list[Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.conversations.create(items=items)
    assert str(refused.value.param).startswith("items")
    made = await sdk.conversations.create()
    with pytest.raises(openai.BadRequestError):
        await sdk.conversations.items.create(made.id, items=items)
    assert await items_of(sdk, made) == []


async def test_a_conversation_whose_response_is_being_written_takes_no_items(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(by_hand=True)) as running, client_of(running) as sdk:
        made = await sdk.conversations.create(items=[user("One?"), assistant("One.")])
        response = await create_response(sdk, "Two?", conversation=made.id, background=True)
        await wait_for_requests(running, 1)
        with pytest.raises(openai.ConflictError) as refused:
            await sdk.conversations.items.create(made.id, items=[user("Three?")])
        assert refused.value.code == "conversation_locked"
        await sdk.responses.cancel(response.id)
        await sdk.conversations.items.create(made.id, items=[user("Three?")])
        assert [kind_and_text(item)[1] for item in await items_of(sdk, made)][-1] == "Three?"


async def test_calls_of_a_response_take_their_outputs_as_items(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    made = await sdk.conversations.create()
    running.engine.script([Call("weather")])
    response = await create_response(sdk, "Weather?", conversation=made.id, tools=[WEATHER])
    call_id = response.output[0].call_id  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError):
        await sdk.conversations.items.create(made.id, items=[user("Well?")])
    output: Any = OUTPUT | {"call_id": call_id}
    await sdk.conversations.items.create(made.id, items=[output, assistant("Sunny.")])
    assert len(running.engine.requests) == 1
    assert [kind_and_text(item)[1] for item in await items_of(sdk, made)] == [
        "Weather?",
        "weather",
        "Sun",
        "Sunny.",
    ]


async def test_a_response_answers_the_calls_of_its_conversation(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    made = await sdk.conversations.create()
    running.engine.script([Call("weather")])
    running.engine.script("Sunny.")
    first = await create_response(sdk, "Weather?", conversation=made.id, tools=[WEATHER])
    output = OUTPUT | {"call_id": first.output[0].call_id}  # type: ignore[union-attr]
    second = await create_response(sdk, [output], conversation=made.id, tools=[WEATHER])
    assert (second.output_text, second.store) == ("Sunny.", True)  # type: ignore[attr-defined]
    assert second.conversation is not None
    assert second.conversation.id == made.id
    assert read(running) == [("user", "Weather?"), ("assistant", ""), ("tool", "Sun")]
    assert [kind_and_text(item)[1] for item in await items_of(sdk, made)] == [
        "Weather?",
        "weather",
        "Sun",
        "Sunny.",
    ]
    with pytest.raises(openai.BadRequestError):
        await create_response(sdk, [output], conversation=made.id)


async def test_nobody_without_a_secret_key_has_conversations(running: InProcessService) -> None:
    async with client_of(running, "none") as nobody:
        with pytest.raises(openai.BadRequestError, match="secret"):
            await nobody.conversations.create()


async def test_conversations_are_erased_with_their_owner(sdk: AsyncOpenAI, running: InProcessService) -> None:
    empty, full = await sdk.conversations.create(), await sdk.conversations.create(items=[user("Hello!")])
    assert await sdk.delete("/me", cast_to=object) == {"conversations": 2}
    for made in (empty, full):
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.retrieve(made.id)


async def test_items_are_filtered_as_messages_are(tmp_path: Path) -> None:
    words = tmp_path / "filters.toml"
    words.write_text('[filters.input]\nwords = ["grapefruit"]')
    async with serving(tmp_path, config=str(words)) as running, client_of(running) as sdk:
        for items in ([user("grapefruit")], [user("Fruit?"), assistant("A grapefruit.")]):
            with pytest.raises(openai.BadRequestError, match="filter"):
                await sdk.conversations.create(items=items)
