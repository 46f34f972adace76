"""`/v1/completions` by OpenAI's own client: prompts as they are, through no template."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from engine.messages import Message, ReplySpec
from engine.scripted import ScriptedEngine
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_openai_sdk import MODEL, client_of


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


async def test_a_text_goes_on(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script(" there was a tree.")
    completion = await sdk.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=9, stop="!")
    assert (completion.object, completion.model) == ("text_completion", MODEL)
    assert completion.id.startswith("cmpl-")
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason, choice.index) == (" there was a tree.", "stop", 0)
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (4, 5)
    (request,) = running.engine.requests
    assert (request.messages, request.spec) == ((Message("user", "Once upon a time"),), ReplySpec(raw=True))
    assert (request.params.max_new_tokens, request.params.stop) == (9, ("!",))


async def test_several_prompts_are_answered_in_their_order(
    sdk: AsyncOpenAI, running: InProcessService
) -> None:
    for text in (" one", " two", " three", " four"):
        running.engine.script(text)
    completion = await sdk.completions.create(model=MODEL, prompt=["A", "B C"], n=2)
    assert [(choice.index, choice.text) for choice in completion.choices] == [
        (0, " one"),
        (1, " two"),
        (2, " three"),
        (3, " four"),
    ]
    assert [request.messages[0].content for request in running.engine.requests] == ["A", "A", "B C", "B C"]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 8)


async def test_a_text_comes_as_a_stream(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script(" there was a tree.")
    stream = await sdk.completions.create(
        model=MODEL, prompt="Once upon a time", stream=True, stream_options={"include_usage": True}
    )
    *parts, last = [part async for part in stream]
    assert "".join(part.choices[0].text for part in parts) == " there was a tree."
    assert [part.choices[0].finish_reason for part in parts][-1] == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


async def test_logprobs_come_by_their_places(sdk: AsyncOpenAI, running: InProcessService) -> None:
    running.engine.script("Grüß Gott!")
    completion = await sdk.completions.create(model=MODEL, prompt="x", logprobs=1)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.token_logprobs) == (["Grüß", " Gott!"], [0, 0])
    assert logprobs.top_logprobs == [{"Grüß": 0}, {" Gott!": 0}]
    assert logprobs.text_offset == [0, 4]


async def test_the_operators_system_prompt_is_no_part_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, system_prompt="Be kind.") as running, client_of(running) as sdk:
        await sdk.completions.create(model=MODEL, prompt="Hello")
        (request,) = running.engine.requests
    assert (request.messages, request.shares_system) == ((Message("user", "Hello"),), False)


async def test_filters_limits_and_the_window_hold_here_too(tmp_path: Path) -> None:
    path = tmp_path / "filters.toml"
    path.write_text('[filters.input]\nwords = ["darn"]\n[filters.output]\nwords = ["heck"]\n')
    async with (
        serving(tmp_path, config=str(path), messages_per_minute=4) as running,
        client_of(running) as sdk,
    ):
        for prompt, code in (("Oh DARN it.", "filtered"), ("word " * 5000, "context_length_exceeded")):
            with pytest.raises(openai.BadRequestError) as refused:
                await sdk.completions.create(model=MODEL, prompt=prompt)
            assert refused.value.code == code
        running.engine.script(["What the", " he", "ck", " more"])
        completion = await sdk.completions.create(model=MODEL, prompt="So")
        assert (completion.choices[0].text, completion.choices[0].finish_reason) == (
            "What the ",
            "content_filter",
        )
        with pytest.raises(openai.RateLimitError):
            await sdk.completions.create(model=MODEL, prompt=["A", "B"])


async def test_a_client_that_goes_away_stops_the_engine(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await sdk.completions.create(model=MODEL, prompt=["A", "B"], stream=True)
        engine.step()
        await anext(stream)
        await stream.close()
        while engine.statistics().cancels < 2:
            await running.get("/healthz")


async def test_an_engine_that_dies_is_raised(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_hand=True)
    async with serving(tmp_path, engine) as running, client_of(running) as sdk:
        stream = await sdk.completions.create(model=MODEL, prompt="A", stream=True)
        engine.step()
        await anext(stream)
        engine.die()
        with pytest.raises(openai.APIError, match="process died"):
            async for _ in stream:
                pass


async def test_a_model_that_takes_no_raw_prompt_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(features=())) as running, client_of(running) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.completions.create(model=MODEL, prompt="A")
        assert (refused.value.param, refused.value.code) == ("prompt", "bad_params")


async def test_refusals_are_counted_at_this_door(sdk: AsyncOpenAI, running: InProcessService) -> None:
    with pytest.raises(openai.BadRequestError):
        await sdk.completions.create(model=MODEL, prompt="")
    _, _, metrics = await running.get("/metrics")
    assert 'api="completions"' in metrics
