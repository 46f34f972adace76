"""`/v1/completions` by OpenAI's own client: prompts as they are, through no template."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from engine.messages import Message
from tests.app.in_process_service import InProcessService, serving
from tests.app.test_openai_sdk import MODEL, client_of


@pytest.fixture
async def sdk(running: InProcessService) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as client:
        yield client


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


async def test_refusals_are_counted_at_this_door(sdk: AsyncOpenAI, running: InProcessService) -> None:
    with pytest.raises(openai.BadRequestError):
        await sdk.completions.create(model=MODEL, prompt="")
    _, _, metrics = await running.get("/metrics")
    assert 'api="completions"' in metrics
