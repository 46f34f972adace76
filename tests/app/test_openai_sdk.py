"""OpenAI's own client against a service: it works unchanged, with its helpers, and raises its own errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from engine.messages import JsonSchema, Message
from engine.scripted import Call, ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.openai_client import HELLO, MODEL, client_of


async def chunks_of(sdk: AsyncOpenAI, messages: list[Any] = HELLO, **more: Any) -> list[ChatCompletionChunk]:
    stream = await sdk.chat.completions.create(model=MODEL, messages=messages, stream=True, **more)
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_a_reply_comes_whole(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    running.engine.cached_tokens = 2
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO)
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Good day to you.")
    assert choice.finish_reason == "stop"
    assert (completion.model, completion.object) == (MODEL, "chat.completion")
    usage = completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 5, 10)
    assert completion._request_id is not None


async def test_a_reply_comes_as_a_stream(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    first, *rest = await chunks_of(sdk)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert text_of(rest) == "Good day to you."
    assert [choice.finish_reason for chunk in rest for choice in chunk.choices][-1] == "stop"
    assert len({chunk.id for chunk in (first, *rest)}) == 1
    assert all("usage" not in chunk.model_fields_set for chunk in rest)


async def test_an_engine_that_dies_before_the_first_text_costs_a_retry(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        await anext(stream)
        engine.script("Here I am.")
        engine.die()
        while len(engine.requests) < 2:
            await running.get("/healthz")
        engine.step(9)
        assert text_of([chunk async for chunk in stream]) == "Here I am."


async def test_a_whole_reply_that_fails_is_a_server_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as running, client_of(running) as sdk:
        await chunks_of(sdk)
        running.engine.fail()
        with pytest.raises(openai.InternalServerError) as raised:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO)
    assert (raised.value.status_code, raised.value.code) == (503, "engine_unavailable")
    assert raised.value.response.headers["retry-after"] == "1"


async def test_filters_hold_here_too(tmp_path: Path) -> None:
    path = tmp_path / "filters.toml"
    path.write_text('[filters.input]\nwords = ["darn"]\n[filters.output]\nwords = ["heck"]\n')
    async with serving(tmp_path, config=str(path)) as running, client_of(running) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await chunks_of(sdk, [{"role": "user", "content": "Oh DARN it."}])
        assert refused.value.code == "filtered"
        running.engine.script(["What the", " he", "ck", *[" more"] * 400])
        chunks = await chunks_of(sdk, stream_options={"include_usage": True})
    assert text_of(chunks) == "What the "
    assert chunks[-2].choices[0].finish_reason == "content_filter"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens < 400


async def test_a_reply_that_a_stop_cuts_is_raised(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, drain_timeout=0.0) as running, client_of(running) as sdk:
        stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        await anext(stream)
        running.service.stop()
        with pytest.raises(openai.APIError) as raised:
            await anext(stream)
        assert raised.value.code == "draining"


async def test_nobody_finds_what_others_said(tmp_path: Path) -> None:
    """Without authentication a token is a name; a client without one shares nothing but the operator's words."""
    async with serving(tmp_path, system_prompt="Be kind.") as running:
        for key in ("one", "two", "one"):
            async with client_of(running, key) as sdk:
                await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        async with client_of(running, "one") as sdk:
            own: list[Any] = [{"role": "system", "content": "Be rude."}, *HELLO]
            await sdk.chat.completions.create(model=MODEL, messages=own)
        one, two, again, rude = running.engine.requests
    assert one.cache_salt == again.cache_salt != two.cache_salt
    assert one.cache_salt == f"{rude.cache_salt}\x00operator"
    assert [request.shares_system for request in (one, two, rude)] == [True, True, False]
    assert one.messages[0] == Message("system", "Be kind.")
    assert rude.messages[0] == Message("system", "Be rude.")
    assert one.conversation == two.conversation != rude.conversation


class Place(BaseModel):
    """Where something is."""

    city: str
    east: float


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


async def test_a_format_that_can_not_be_compiled_is_refused_by_the_clients_name_for_it(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"guided_regex": "("})
    assert (refused.value.param, refused.value.code) == ("guided_regex", "bad_params")
    assert running.engine.requests == []
