"""Stored responses: each is a place in a conversation, and can be continued, followed, stopped and deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from connections.api.responses import store as response_store
from engine.scripted import Call, ScriptedEngine
from sessions.errors import StoreDown
from sessions.turn import prompt
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import client_of, create_response
from tests.sessions.chat_driver import eventually

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def read(running: InProcessService, number: int = -1) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in running.engine.requests[number].messages]


async def test_nothing_is_left_of_a_response_that_was_deleted(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    first = await create_response(sdk, "Hello!", conversation="mine")
    second = await create_response(
        sdk, "secret", conversation="mine", instructions="secret", metadata={"k": "secret"}
    )
    assert b"secret" in await stored_bytes(running)
    await sdk.responses.delete(second.id)
    assert b"secret" not in await stored_bytes(running)
    assert (await sdk.responses.retrieve(first.id)).status == "completed"


async def stored_bytes(running: InProcessService) -> bytes:
    """All that the store has of conversations called `mine`, without their journals and prompts."""
    client = running.service._sessions.storage.history._client
    found = b""
    async for key in client.scan_iter("ms:{*/mine}"):
        fields = await client.hgetall(key)
        found += b"".join(value for name, value in fields.items() if name != b"system")
    return found


async def test_what_is_not_to_be_stored_is_kept_nowhere(sdk: AsyncOpenAI, running: InProcessService) -> None:
    response = await create_response(sdk, "Hello!", store=False)
    assert response.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError):
        await create_response(sdk, "And?", previous_response_id=response.id)
    assert await conversations(running) == []


async def test_what_outputs_bring_with_them_is_filtered_and_bounded(tmp_path: Path) -> None:
    words = tmp_path / "filters.toml"
    words.write_text('[filters.input]\nwords = ["grapefruit"]')
    async with serving(tmp_path, config=str(words)) as running, client_of(running) as sdk:
        running.engine.script([Call("weather")])
        first = await create_response(sdk, "Weather?", tools=[WEATHER])
        call_id = first.output[0].call_id  # type: ignore[union-attr]
        output = [{"type": "function_call_output", "call_id": call_id, "output": "Sun"}]
        with pytest.raises(openai.BadRequestError, match="filter"):
            await create_response(sdk, output, previous_response_id=first.id, instructions="Say grapefruit.")
        long = await create_response(
            sdk, output, previous_response_id=first.id, instructions="Be kind. " * 2000
        )
        assert long.store is False  # type: ignore[attr-defined]


async def conversations(running: InProcessService) -> list[bytes]:
    """The names of all keys in the store."""
    client = running.service._sessions.storage.history._client
    return [name async for name in client.scan_iter("ms:{*/response-*}")]


async def test_of_what_was_said_before_a_response_no_more_is_read_than_a_request_could_bring(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = None
    for _ in range(4):
        last = await create_response(
            sdk, "word " * 200, previous_response_id=None if last is None else last.id
        )
    assert last is not None
    monkeypatch.setattr(response_store, "MAX_PATH_BYTES", 2_000)
    assert (await sdk.responses.retrieve(last.id)).status == "completed"
    items = (await sdk.responses.input_items.list(last.id, order="asc")).data
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant", "user"]
    for more in ({}, {"store": False}):
        with pytest.raises(openai.BadRequestError) as refused:
            await create_response(sdk, "And?", previous_response_id=last.id, **more)
        assert refused.value.code == "context_length_exceeded"
    assert (
        await create_response(sdk, "And?", previous_response_id=last.id, truncation="auto")
    ).status == "completed"


async def test_a_conversation_that_no_window_holds_is_not_read_to_be_gone_on_with_whole(
    sdk: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await create_response(sdk, "word " * 200, conversation="long")
    monkeypatch.setattr(prompt, "MOST_BYTES", 2_000)
    with pytest.raises(openai.BadRequestError) as refused:
        await create_response(sdk, "And?", conversation="long")
    assert refused.value.code == "context_length_exceeded"
    assert (await create_response(sdk, "And?", conversation="long", truncation="auto")).status == "completed"


async def test_a_call_has_one_output(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script([Call("weather")])
    first = await create_response(sdk, "Weather?", tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "Sun"}  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="may have one output of the call"):
        await create_response(sdk, [output, output], previous_response_id=first.id)


async def test_nothing_is_left_of_a_response_that_fails_once_its_turn_was_accepted(
    sdk: AsyncOpenAI, running: InProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise StoreDown("The store is away.")

    monkeypatch.setattr(response_store.ResponseStore, "note", fail)
    with pytest.raises(openai.InternalServerError):
        await create_response(sdk, "Hello!")
    await eventually(lambda: running.service._sessions.statistics().conversations == 0)


async def test_a_message_that_leaves_the_queue_ends_nobody_elses_response(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:

        async def turns(number: int) -> None:
            await eventually(lambda: running.service._sessions.statistics().turns == number)

        engine.script(["Well."])
        first = asyncio.create_task(create_response(sdk, "Hold on.", conversation="c"))
        await eventually(lambda: len(engine.requests) == 1)
        second = asyncio.create_task(create_response(sdk, "And?", conversation="c"))
        await turns(2)
        second.cancel()
        await turns(1)
        engine.step(3)
        assert (await first).output_text == "Well."
