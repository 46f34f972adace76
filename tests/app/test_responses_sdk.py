"""OpenAI's own client at the Responses endpoint: it works unchanged, and raises what goes wrong."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent

from engine.scripted import Call, Thought
from tests.app.in_process_service import InProcessService
from tests.app.openai_client import MODEL

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": True,
}


async def stream_events(sdk: AsyncOpenAI, **params: Any) -> list[ResponseStreamEvent]:
    stream = await sdk.responses.create(**{"model": MODEL, "input": "Hello!"} | params, stream=True)
    return [event async for event in stream]


async def test_a_response_comes_whole(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    running.engine.cached_tokens = 2
    response = await sdk.responses.create(model=MODEL, input="Hello!", metadata={"for": "a test"})
    Response.model_validate(response.model_dump(), strict=True)
    assert (response.status, response.output_text) == ("completed", "Good day to you.")
    assert (response.model, response.metadata) == (MODEL, {"for": "a test"})
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 5, 10)
    assert usage.input_tokens_details.cached_tokens == 2


async def test_a_response_comes_as_events_in_their_order(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    events = await stream_events(sdk)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Good day to you."
    Response.model_validate(last.response.model_dump(), strict=True)


async def test_thoughts_and_calls_are_items(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script(
        [Thought("Rome. "), Thought("Ask."), Call("weather", '{"place":"Rome"}', call_id="call_1")]
    )
    events = await stream_events(sdk, tools=[WEATHER], include=["reasoning.encrypted_content"])
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind in kinds if kind.startswith("output_item")] == [
        "output_item.added",
        "output_item.done",
        "output_item.added",
        "output_item.done",
    ]
    assert "reasoning_text.delta" in kinds
    assert kinds[-4:] == [
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    (thought, call) = events[-1].response.output  # type: ignore[union-attr]
    assert [part.text for part in thought.content] == ["Rome. Ask."]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("weather", '{"place":"Rome"}')
    running.engine.script("Sunny.")
    brought = [{"role": "user", "content": "Rome?"}]
    brought += [item.model_dump(exclude={"content"}, exclude_none=True) for item in (thought, call)]
    brought.append(
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": [{"type": "input_text", "text": "Sun."}],
        }
    )
    await sdk.responses.create(model=MODEL, input=brought, tools=[WEATHER])  # type: ignore[arg-type]
    assert running.engine.requests[-1].messages[1].reasoning == "Rome. Ask."


async def test_a_response_that_was_cut_is_incomplete(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("One two three four.")
    events = await stream_events(sdk, max_output_tokens=2)
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"  # type: ignore[union-attr]


async def test_responses_come_over_a_socket(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    async with sdk.responses.connect() as connection:
        await connection.response.create(model=MODEL, input="Hello!")
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                break
    assert text == "Good day to you."
