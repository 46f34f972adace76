"""OpenAI's own client against a service: it works unchanged, and raises its own errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from connections.authentication.api_keys import digest_of
from engine.messages import Message
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.jwt_signing import KEY

MODEL = "midstream-demo"
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def client_of(running: InProcessService, key: str = "anything") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


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


async def test_a_stream_tells_its_totals_when_asked(sdk: AsyncOpenAI) -> None:
    *others, last = await chunks_of(sdk, stream_options={"include_usage": True})
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in others)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens > 5


async def test_what_is_asked_reaches_the_engine(sdk: AsyncOpenAI, running: InProcessService) -> None:
    await sdk.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
            {"role": "assistant", "content": "Three."},
            {"role": "user", "content": "Four?"},
        ],
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=["five", "six"],
        max_completion_tokens=3,
        max_tokens=9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"5": 1},
        extra_body={"min_p": 0.1, "min_tokens": 2, "ignore_eos": True, "skip_special_tokens": False},
    )
    (request,) = running.engine.requests
    assert request.messages == (
        Message("system", "Be brief."),
        Message("user", "One.\nTwo."),
        Message("assistant", "Three."),
        Message("user", "Four?"),
    )
    params = request.params
    assert (params.do_sample, params.temperature, params.top_p, params.seed) == (True, 0.5, 0.9, 7)
    assert (params.stop, params.max_new_tokens) == (("five", "six"), 3)
    assert (params.presence_penalty, params.frequency_penalty, params.logit_bias) == (0.5, -0.5, ((5, 1.0),))
    assert (params.min_p, params.min_tokens) == (0.1, 2)
    assert (params.ignore_eos, params.special_tokens) == (True, True)


async def test_logprobs_come_with_a_whole_reply(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Grüß Gott!")
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.refusal is None
    first, second = logprobs.content or []
    assert (first.token, first.logprob, bytes(first.bytes or [])) == ("Grüß", 0, "Grüß".encode())
    assert [one.token for one in second.top_logprobs] == [" Gott!"]


async def test_logprobs_come_with_the_text_of_a_stream(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Good day to you.")
    first, *rest, last = await chunks_of(sdk, logprobs=True)
    assert first.choices[0].logprobs is last.choices[0].logprobs is None
    for chunk in rest:
        (choice,) = chunk.choices
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert "".join(one.token for one in tokens) == choice.delta.content
        assert all(one.top_logprobs == [] for one in tokens)


async def test_nobody_who_did_not_ask_is_told_logprobs(sdk: AsyncOpenAI) -> None:
    completion = await sdk.chat.completions.create(model=MODEL, messages=HELLO, logprobs=False)
    assert completion.choices[0].logprobs is None
    assert all(choice.logprobs is None for chunk in await chunks_of(sdk) for choice in chunk.choices)


async def test_the_longest_reply_ends_by_its_length(sdk: AsyncOpenAI) -> None:
    chunks = await chunks_of(sdk, max_tokens=2, stop="never")
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_neutral_values_and_fields_without_effect_pass(sdk: AsyncOpenAI) -> None:
    completion = await sdk.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        n=1,
        frequency_penalty=0,
        presence_penalty=0.0,
        logprobs=False,
        logit_bias={},
        response_format={"type": "text"},
        user="ann",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        tools=[],
        extra_body={"something_new": 1},
    )
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("tools", [TOOL], "tools"),
        ("tool_choice", "required", "tools"),
        ("response_format", {"type": "json_object"}, "response_format"),
        ("extra_body", {"guided_regex": "a+"}, "guided_regex"),
        ("extra_body", {"chat_template_kwargs": {"shout": True}}, "chat_template_kwargs"),
        (
            "extra_body",
            {"continue_final_message": True, "add_generation_prompt": False},
            "continue_final_message",
        ),
    ],
)
async def test_what_the_model_can_not_follow_is_refused_by_the_clients_name_for_it(
    field: str, value: Any, name: str, tmp_path: Path
) -> None:
    params: dict[str, Any] = {field: value}
    if field == "tool_choice":
        params["tools"] = [TOOL]
    messages = [*HELLO, {"role": "assistant", "content": "So"}] if name.startswith("continue") else HELLO
    async with (
        serving(tmp_path, ScriptedEngine(features=()), unsupported_tools="refuse") as running,
        client_of(running) as sdk,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=messages, **params)
        error = refused.value
        assert (error.param, error.code, error.type) == (name, "bad_params", "invalid_request_error")
        assert f"`{name}` can't be followed" in error.message
        assert running.engine.requests == []


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("chat/completions", {"messages": HELLO, "reasoning_effort": "high"}, "reasoning_effort"),
        ("chat/completions", {"messages": HELLO, "think": "high"}, "think"),
        (
            "messages",
            {"messages": HELLO, "max_tokens": 9, "output_config": {"effort": "high"}},
            "output_config.effort",
        ),
        ("responses", {"input": "Hi!", "reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("responses", {"input": "Hi!", "reasoning": {"effort": "low"}, "store": False}, "reasoning.effort"),
        (
            "ag-ui",
            {
                "threadId": "t",
                "runId": "r",
                "messages": [{"id": "m", "role": "user", "content": "Hi!"}],
                "forwardedProps": {"reasoning_effort": "low"},
            },
            "reasoning_effort",
        ),
    ],
)
async def test_an_effort_is_a_hint_and_named_where_the_model_knows_none(
    path: str, fields: dict[str, Any], name: str, tmp_path: Path
) -> None:
    body = {"model": MODEL} | fields
    for engine, ignored in ((ScriptedEngine(features=()), name), (ScriptedEngine(), None)):
        async with serving(tmp_path, engine) as running, httpx.AsyncClient(base_url=running.url) as client:
            answer = await client.post(f"/v1/{path}", json=body, headers={"Authorization": f"Bearer {KEY}"})
        assert (answer.status_code, answer.headers.get("X-Midstream-Ignored")) == (200, ignored), answer.text


async def test_a_client_that_goes_away_stops_the_engine(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("word " * 100_000)
    stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True, max_tokens=4000)
    async for _ in stream:
        break
    await stream.close()
    while running.engine.statistics().running:
        await chunks_of(sdk)
    reported = running.engine.statistics()
    assert (reported.cancels, reported.steps_after_cancel <= 1) == (1, True)
    _, _, metrics = await running.get("/metrics")
    assert 'midstream_cancels_total{cause="disconnect"} 1.0' in metrics
    assert "midstream_turns_live 0.0" in metrics


async def test_an_engine_that_dies_mid_stream_is_raised(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        seen = [await anext(stream)]
        engine.step()
        seen.append(await anext(stream))
        engine.die()
        seen.append(await anext(stream))
        assert seen[-1].usage is not None
        assert seen[-1].usage.completion_tokens == 1
        with pytest.raises(openai.APIError, match="process died") as raised:
            await anext(stream)
        assert (raised.value.code, raised.value.type) == ("engine_unavailable", "server_error")


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


async def test_messages_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(context_tokens=10)) as running, client_of(running) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO * 2)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


async def test_the_model_is_listed_and_no_other_answers(sdk: AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == [MODEL]
    assert (await sdk.models.retrieve(MODEL)).owned_by == "midstream"
    with pytest.raises(openai.NotFoundError):
        await sdk.models.retrieve("org/other")
    with pytest.raises(openai.NotFoundError) as refused:
        await sdk.chat.completions.create(model="gpt-5", messages=HELLO)
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


async def test_what_is_not_served_is_named_by_the_sdks_exceptions(sdk: AsyncOpenAI) -> None:
    why = "does not serve /v1/moderations. It serves POST /v1/chat/completions"
    with pytest.raises(openai.NotFoundError, match=why) as refused:
        await sdk.moderations.create(input="Hello!")
    assert (refused.value.code, refused.value.type) == ("unknown_url", "invalid_request_error")


async def test_a_client_without_v1_in_its_base_url_is_told_so(running: InProcessService) -> None:
    async with AsyncOpenAI(base_url=running.url, api_key="anything", max_retries=0) as sdk:
        with pytest.raises(openai.NotFoundError, match="base URL of an API client ends with /v1"):
            await sdk.chat.completions.create(model=MODEL, messages=HELLO)


async def test_a_model_of_another_name_is_told_the_one_that_is_served(sdk: AsyncOpenAI) -> None:
    for model in ("gpt-5", "x" * 1000):
        with pytest.raises(openai.NotFoundError, match=f'This server has "{MODEL}"'):
            await sdk.chat.completions.create(model=model, messages=HELLO)


async def test_tools_pass_where_their_use_is_forbidden(sdk: AsyncOpenAI, running: InProcessService) -> None:
    """The model does not see them, and its reply calls none, as requested."""
    tool: Any = TOOL
    completion = await sdk.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[tool], tool_choice="none"
    )
    assert completion.choices[0].message.tool_calls is None
    assert [message.content for message in running.engine.requests[0].messages] == ["Hello!"]


async def test_a_key_is_asked_for_where_there_are_keys(tmp_path: Path) -> None:
    key = "m" * 40
    async with serving(tmp_path, api_keys=f"ann:{digest_of(key)}") as running:
        async with client_of(running, "wrong") as stranger:
            for call in (
                stranger.models.list(),
                stranger.chat.completions.create(model=MODEL, messages=HELLO),
            ):
                with pytest.raises(openai.AuthenticationError) as refused:
                    await call
                assert refused.value.code == "invalid_api_key"
        async with client_of(running, key) as ann:
            await ann.chat.completions.create(model=MODEL, messages=HELLO)
        assert running.engine.requests[-1].cache_salt == "key:ann//openai"


async def test_limits_of_messages_hold_here_too(tmp_path: Path) -> None:
    async with serving(tmp_path, messages_per_minute=1) as running, client_of(running) as sdk:
        await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 60


async def test_turns_of_all_doors_are_counted_together(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, max_turns=1) as running, client_of(running) as sdk:
        stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        with pytest.raises(openai.InternalServerError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        assert (refused.value.status_code, refused.value.code) == (503, "overloaded")
        async with running.socket() as socket:
            answer = await socket.ask(type="send", client_msg_id="m1", content="Hello!")
            assert answer["code"] == "overloaded"
        await stream.close()


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


async def test_a_server_that_stops_lets_replies_end(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine, drain_timeout=30.0) as running, client_of(running) as sdk:
        engine.script("Still here.")
        stream = await sdk.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        await anext(stream)
        running.service.stop()
        while not running.service._sessions.parts.admission.draining:
            await running.get("/healthz")
        with pytest.raises(openai.InternalServerError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        assert (refused.value.status_code, refused.value.code) == (503, "draining")
        assert refused.value.response.headers["retry-after"] == "1"
        engine.step(9)
        assert text_of([chunk async for chunk in stream]) == "Still here."


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
