"""Tools, reasoning and formats at the chat's endpoint, by OpenAI's own client and its helpers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from pydantic import BaseModel

from engine.messages import JsonSchema
from engine.scripted import Call
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_openai_sdk import HELLO, MODEL, client_of


class Place(BaseModel):
    """Where something is."""

    city: str
    east: float


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


async def test_the_sdks_stream_helper_puts_the_reply_together(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    running.engine.script(["Well.", Call("Place", '{"city":"Bern","east":7.4}', "c_1")])
    tools = [pydantic_function_tool(Place)]
    async with sdk.chat.completions.stream(model=MODEL, messages=HELLO, tools=tools) as stream:
        kinds = [event.type async for event in stream]
        completion = await stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Place(city="Bern", east=7.4)
    assert completion.choices[0].message.content == "Well."


async def test_the_sdk_parses_what_keeps_to_a_schema(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script(['{"city":', '"Bern",', '"east":7.4}'])
    completion = await sdk.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Place)
    assert completion.choices[0].message.parsed == Place(city="Bern", east=7.4)
    requested = running.engine.requests[0].spec.format
    assert isinstance(requested, JsonSchema)
    assert json.loads(requested.schema)["required"] == ["city", "east"]


async def test_a_reply_that_is_cut_is_not_passed_off_as_json(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    running.engine.script(['{"city":', '"Bern",', '"east":7.4}'])
    with pytest.raises(openai.LengthFinishReasonError):
        await sdk.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Place, max_tokens=2)


async def test_each_reply_counts_as_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_minute=3) as running, client_of(running) as sdk:
        await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=2)
        with pytest.raises(openai.RateLimitError):
            await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=2)


async def test_tools_that_can_not_fit_are_refused_before_they_are_read(sdk: AsyncOpenAI) -> None:
    words = {"type": "function", "function": {"name": "look", "description": "word " * 3000}}
    tools: list[Any] = [words | {"function": words["function"] | {"name": f"look{n}"}} for n in range(2)]
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.chat.completions.create(model=MODEL, messages=HELLO, tools=tools)
    assert refused.value.code == "context_length_exceeded"


async def test_a_format_that_can_not_be_compiled_is_refused_by_the_clients_name_for_it(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"guided_regex": "("})
    assert (refused.value.param, refused.value.code) == ("guided_regex", "bad_params")
    assert running.engine.requests == []
