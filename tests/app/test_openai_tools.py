"""Tools, reasoning and formats at the chat's endpoint, by OpenAI's own client and its helpers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from pydantic import BaseModel

from engine.messages import JsonSchema, Message, ReplySpec, Tool, ToolCall
from engine.scripted import Call, ScriptedEngine, Thought
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_openai_sdk import HELLO, MODEL, chunks_of, client_of

LOOK: Any = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}


class Place(BaseModel):
    """Where something is."""

    city: str
    east: float


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


async def test_a_reply_calls_tools(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script(["Let me", " look.", Call("look", '{"at":1}', "c_1"), Call("look", '{"at":2}')])
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO, tools=[LOOK])
    (choice,) = completion.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
    first, second = choice.message.tool_calls or []
    assert first.type == second.type == "function"
    assert (first.id, first.function.name, first.function.arguments) == ("c_1", "look", '{"at":1}')
    assert re.fullmatch("call_[0-9a-f]{24}", second.id)
    (request,) = running.engine.requests
    assert request.spec == ReplySpec(tools=(Tool("look", "Looks.", '{"type":"object","properties":{}}'),))


async def test_a_reply_that_only_calls_has_no_text(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script([Call("look")])
    completion = await sdk.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[LOOK], tool_choice="required"
    )
    assert completion.choices[0].message.content is None
    assert running.engine.requests[0].spec.tool_choice == "required"


async def test_results_go_back_to_the_model(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script([Thought("Hm."), Call("look", '{"at":1}', "c_1")])
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO, tools=[LOOK])
    message = completion.choices[0].message
    history: list[Any] = [*HELLO, message, {"role": "tool", "tool_call_id": "c_1", "content": "A tree."}]
    running.engine.script("I see a tree.")
    completion = await sdk.chat.completions.create(model=MODEL, messages=history, tools=[LOOK])
    assert completion.choices[0].message.content == "I see a tree."
    assert running.engine.requests[-1].messages[1:] == (
        Message("assistant", "", reasoning="Hm.", calls=(ToolCall("c_1", "look", '{"at":1}'),)),
        Message("tool", "A tree.", call_id="c_1"),
    )


async def test_calls_come_in_a_stream(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script(["Well.", Call("look", '{"at":1}', "c_1"), Call("look", '{"at":2}', "c_2")])
    chunks = await chunks_of(sdk, tools=[LOOK])
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(one.index, one.id, one.type) for one in deltas] == [
        (0, "c_1", "function"),
        (1, "c_2", "function"),
    ]
    assert [one.function and one.function.arguments for one in deltas] == ['{"at":1}', '{"at":2}']
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


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


async def test_what_was_thought_comes_under_both_of_its_names(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    script = [Thought("Let me"), Thought(" see."), "A tree."]
    running.engine.script(script)
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO)
    reported = completion.choices[0].message.model_extra or {}
    assert (reported["reasoning_content"], reported["reasoning"]) == ("Let me see.", "Let me see.")
    assert completion.choices[0].message.content == "A tree."
    usage = completion.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (4, 2)
    running.engine.script(script)
    chunks = await chunks_of(sdk, stream_options={"include_usage": True})
    extra = [chunk.choices[0].delta.model_extra or {} for chunk in chunks if chunk.choices]
    assert "".join(one.get("reasoning_content", "") for one in extra) == "Let me see."
    assert "".join(one.get("reasoning", "") for one in extra) == "Let me see."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details is not None
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 2


async def test_who_does_not_want_thoughts_is_told_none(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script([Thought("Let me see."), "A tree."])
    completion = await sdk.chat.completions.create(
        model=MODEL, messages=HELLO, extra_body={"include_reasoning": False}
    )
    assert "reasoning" not in (completion.choices[0].message.model_extra or {})
    running.engine.script([Thought("Let me see."), "A tree."])
    chunks = await chunks_of(sdk, extra_body={"include_reasoning": False})
    assert not any("reasoning" in (chunk.choices[0].delta.model_extra or {}) for chunk in chunks)


async def test_several_replies_share_a_prompt(sdk: AsyncOpenAI, running: InProcessService) -> None:
    for reply in ("One.", "Two, too."):
        running.engine.script(reply)
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=2, seed=5)
    assert [(one.index, one.message.content) for one in completion.choices] == [(0, "One."), (1, "Two, too.")]
    usage = completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 5, 10)
    assert [request.params.seed for request in running.engine.requests] == [5, 6]


async def test_several_replies_come_in_one_stream(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        for reply in ("One two", "Three four"):
            engine.script(reply)
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=HELLO, n=2, stream=True, stream_options={"include_usage": True}
        )
        reported = [await anext(stream), await anext(stream)]
        for _ in range(2):
            engine.step()
            reported += [await anext(stream), await anext(stream)]
        engine.step()
        reported += [chunk async for chunk in stream]
    *chunks, last = reported
    assert [(chunk.choices[0].index, chunk.choices[0].delta.content) for chunk in chunks] == [
        (0, ""),
        (1, ""),
        (0, "One"),
        (1, "Three"),
        (0, " two"),
        (1, " four"),
        (0, None),
        (1, None),
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == ["stop", "stop"]
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 6)
    assert len({chunk.id for chunk in reported}) == 1


async def test_one_that_leaves_ends_all_its_replies(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=3, stream=True)
        engine.step()
        await anext(stream)
        await stream.close()
        while engine.statistics().cancels < 3:
            await running.get("/healthz")
        assert engine.statistics().running == 0


async def test_one_that_fails_ends_the_others(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=2, stream=True)
        reported = [await anext(stream), await anext(stream)]
        engine.step()
        reported += [await anext(stream), await anext(stream)]
        engine.die(revive=False)
        with pytest.raises(openai.APIError, match="process died"):
            async for _ in stream:
                pass
        while running.service._sessions.statistics().turns:
            await running.get("/healthz")


async def test_each_reply_counts_as_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_minute=3) as running, client_of(running) as sdk:
        await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=2)
        with pytest.raises(openai.RateLimitError):
            await sdk.chat.completions.create(model=MODEL, messages=HELLO, n=2)


async def test_a_model_that_can_not_call_answers_without_tools_and_says_so(tmp_path: Path) -> None:
    """As Open WebUI's page needs it: each of its messages has dozens of tools."""
    async with serving(tmp_path, ScriptedEngine(features=())) as running, client_of(running) as sdk:
        for stream in (False, True):
            answer = await sdk.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=HELLO,
                tools=[LOOK],
                stream=stream,  # type: ignore[arg-type]
            )
            assert answer.headers["x-midstream-ignored"] == "tools"
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(
                model=MODEL, messages=HELLO, tools=[LOOK], tool_choice="required"
            )
        assert refused.value.param == "tools"
        assert [request.spec for request in running.engine.requests] == [ReplySpec(), ReplySpec()]


async def test_calls_in_the_history_of_a_model_that_can_not_read_them_are_refused_in_words(
    tmp_path: Path,
) -> None:
    function = {"name": "look", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "A cat."}
    async with serving(tmp_path, ScriptedEngine(features=())) as running, client_of(running) as sdk:
        messages: list[Any] = [*HELLO, call, result]
        with pytest.raises(openai.BadRequestError, match="can't read tool calls") as refused:
            await sdk.chat.completions.create(model=MODEL, messages=messages)
    assert refused.value.param == "messages"


async def test_an_operator_may_have_them_refused(tmp_path: Path) -> None:
    engine = ScriptedEngine(features=())
    async with serving(tmp_path, engine, unsupported_tools="refuse") as running, client_of(running) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO, tools=[LOOK])
        assert refused.value.param == "tools"


async def test_who_shows_tools_that_are_called_is_told_of_none_ignored(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    answer = await sdk.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, tools=[LOOK])
    assert "x-midstream-ignored" not in answer.headers


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
