"""OpenAI's own client at the Responses endpoint: it works unchanged, and raises what goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent

from engine.messages import JsonSchema, Message, ToolCall
from engine.scripted import Call, Thought
from tests.app.in_process_service import InProcessService, serving
from tests.jwt_signing import KEY

MODEL = "midstream-demo"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": True,
}


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


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


async def test_what_is_asked_reaches_the_engine(sdk: AsyncOpenAI, running: InProcessService) -> None:
    await sdk.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "What is it like in Rome?"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "weather",
                "arguments": '{"place":"Rome"}',
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."},
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "Say it in JSON."},
        ],
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=30,
        tools=[WEATHER],
        tool_choice="none",
        text={"format": {"type": "json_schema", "name": "w", "schema": {"type": "object"}}},
        reasoning={"effort": "low"},
        truncation="auto",
        max_tool_calls=3,
        service_tier="auto",
        safety_identifier="someone",
        prompt_cache_key="one chat",
    )
    (request,) = running.engine.requests
    call = ToolCall("call_1", "weather", '{"place":"Rome"}')
    assert request.messages == (
        Message("system", "Be brief."),
        Message("user", "What is it like in Rome?"),
        Message("assistant", "", reasoning="Hm.", calls=(call,)),
        Message("tool", "Sunny.", call_id="call_1"),
        Message("assistant", "Sunny."),
        Message("user", "Say it in JSON."),
    )
    params = request.params
    assert (params.temperature, params.top_p, params.max_new_tokens) == (0.5, 0.9, 30)
    spec = request.spec
    assert ([tool.name for tool in spec.tools], spec.tool_choice, spec.reasoning) == (
        ["weather"],
        "none",
        "low",
    )
    assert spec.format == JsonSchema('{"type":"object"}')


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


async def test_a_refusal_names_the_field(sdk: AsyncOpenAI) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        (
            {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://h/mcp"}]},
            "tools[0].server_label",
        ),
        ({"input": [{"role": "user", "content": [picture]}]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "computer_call_output", "call_id": "c"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"k": "v" * 600}}, "metadata"),
        ({"model": "gpt-9"}, "model"),
    ]
    for params, field in refused:
        with pytest.raises(openai.APIStatusError) as error:
            await sdk.responses.create(**{"model": MODEL, "input": "Hello!"} | params)
        assert error.value.body is not None
        assert error.value.param == field, (params, error.value.message)


AGENTS: Any = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}],
}


async def test_what_can_not_be_followed_or_run_is_named_in_a_header(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    search: Any = {"type": "web_search"}
    raw = await sdk.responses.with_raw_response.create(
        model=MODEL, input="Hi!", tools=[search, WEATHER], text={"verbosity": "low"}
    )
    assert raw.headers["X-Midstream-Ignored"] == "tools[0], text.verbosity"
    assert [tool.name for tool in running.engine.requests[-1].spec.tools] == ["weather"]
    assert [tool.type for tool in raw.parse().tools] == ["function"]


async def test_tools_that_can_not_be_run_are_named_wherever_they_are(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    custom: Any = {"type": "custom", "name": "patch"}
    space: Any = AGENTS | {"tools": [*AGENTS["tools"], custom]}
    create = sdk.responses.with_raw_response.create
    raw = await create(model=MODEL, input="Hi!", tools=[space, custom])
    assert raw.headers["X-Midstream-Ignored"] == "tools[0].tools[1], tools[1]"
    running.engine.script([Call("weather")])
    first = await sdk.responses.create(model=MODEL, input="Hi!", tools=[WEATHER, custom])
    call: Any = first.output[0]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun"}
    follows = {"previous_response_id": first.id, "input": [output]}
    raw = await create(model=MODEL, tools=[WEATHER, custom], **follows)
    assert raw.headers["X-Midstream-Ignored"] == "tools[1]"
    with pytest.raises(openai.BadRequestError, match="at most 128"):
        await sdk.responses.create(model=MODEL, input="Hi!", tools=[custom] * 129)


async def test_a_choice_names_functions_of_a_namespace_and_passes_over_what_was_left_out(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    search: Any = {"type": "web_search"}
    spawn: Any = {"type": "function", "name": "spawn", "namespace": "agents"}
    tools: Any = [AGENTS, WEATHER, search]
    await sdk.responses.create(model=MODEL, input="Hi!", tools=tools, tool_choice=spawn)
    assert running.engine.requests[-1].spec.tool_name == "agents__spawn"
    allowed: Any = {"type": "allowed_tools", "mode": "auto", "tools": [spawn, search]}
    await sdk.responses.create(model=MODEL, input="Hi!", tools=tools, tool_choice=allowed)
    assert [tool.name for tool in running.engine.requests[-1].spec.tools] == ["agents__spawn"]


async def test_an_operator_may_refuse_what_can_not_be_run(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, unsupported_tools="refuse") as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as sdk,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model=MODEL, input="Hi!", tools=[{"type": "web_search"}])
        assert refused.value.param == "tools[0].type"


@pytest.mark.parametrize("is_kept", [True, False])
async def test_the_functions_of_a_namespace_are_called_under_it(
    sdk: AsyncOpenAI, running: InProcessService, *, is_kept: bool
) -> None:
    running.engine.script([Call("agents__spawn")])
    events = [
        event
        async for event in await sdk.responses.create(
            model=MODEL, input="Help!", tools=[AGENTS, WEATHER], stream=True, store=is_kept
        )
    ]
    shown = [tool.name for tool in running.engine.requests[-1].spec.tools]
    assert shown == ["agents__spawn", "weather"]
    last: Any = events[-1]
    (call,) = last.response.output
    assert (call.name, call.namespace) == ("spawn", "agents")
    assert [tool.type for tool in last.response.tools] == ["namespace", "function"]
    running.engine.script("Done.")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "ready"}
    if is_kept:
        params: dict[str, Any] = {"previous_response_id": last.response.id, "input": [output]}
    else:
        params = {"input": [{"role": "user", "content": "Help!"}, call.to_dict(), output], "store": False}
    await sdk.responses.create(model=MODEL, tools=[AGENTS, WEATHER], **params)
    _, called, result = running.engine.requests[-1].messages
    assert [one.name for one in called.calls] == ["agents__spawn"]
    assert result == Message("tool", "ready", call_id=call.call_id)
    if is_kept:
        items = await sdk.responses.input_items.list(last.response.id)
        assert items.data
        again = await sdk.responses.retrieve(last.response.id)
        assert again.output[0] == call
