"""OpenAI's own client against a real server with the demo model."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.server_process import ServerProcess

MODEL = "midstream-demo"
ROUNDED = 0.3
"""Tolerance for logarithms: the server computes in bfloat16, with or without a cached prefix."""
COUNT: list[Any] = [{"role": "user", "content": "Count from 1 to 300."}]


@pytest.fixture
async def sdk(server: ServerProcess, client_id: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=client_id, max_retries=0) as client:
        yield client


async def test_a_chat_whose_beginning_is_kept(sdk: AsyncOpenAI) -> None:
    """The second turn finds the first one's keys and values, though nothing else of it is stored."""
    messages: list[Any] = [{"role": "user", "content": "My name is Ada."}]
    first = await sdk.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    reply = first.choices[0].message.content
    assert reply
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "What is my name?"}]
    second = await sdk.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert "Ada" in (second.choices[0].message.content or "")
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 16


async def test_a_seed_repeats_a_reply(sdk: AsyncOpenAI) -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a story."}]
    one, two = [
        await sdk.chat.completions.create(model=MODEL, messages=story, temperature=1.2, seed=5, max_tokens=20)
        for _ in range(2)
    ]
    assert one.choices[0].message.content == two.choices[0].message.content
    assert one.choices[0].finish_reason == "length"


async def test_logprobs_are_those_of_the_reply_streamed_or_not(sdk: AsyncOpenAI) -> None:
    """The tokens form the text; without a temperature each is the likeliest of its alternatives."""
    requested: dict[str, Any] = {"model": MODEL, "messages": COUNT, "temperature": 0, "stop": " 12"}
    plain = await sdk.chat.completions.create(**requested)
    requested |= {"logprobs": True, "top_logprobs": 5}
    whole = await sdk.chat.completions.create(**requested)
    stream = await sdk.chat.completions.create(stream=True, **requested)
    streamed = [c.logprobs async for chunk in stream for c in chunk.choices if c.logprobs is not None]
    (choice,) = whole.choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert choice.message.content == plain.choices[0].message.content
    assert b"".join(bytes(one.bytes or []) for one in tokens).decode() == choice.message.content
    for one in tokens:
        scores = [other.logprob for other in one.top_logprobs]
        assert (len(scores), scores) == (5, sorted(scores, reverse=True))
        assert one.token in [other.token for other in one.top_logprobs if other.logprob == scores[0]]
        assert one.logprob == scores[0]
        assert sum(map(math.exp, scores)) < 1 + 1e-4
    again = [one for part in streamed for one in part.content or []]
    assert [one.token for one in again] == [one.token for one in tokens]
    assert [one.logprob for one in again] == pytest.approx([one.logprob for one in tokens], abs=ROUNDED)


async def test_logprobs_are_the_models_whatever_the_temperature(sdk: AsyncOpenAI) -> None:
    """The first token's alternatives are scored before the temperature, and asking does not change what is sampled."""
    requested: dict[str, Any] = {"model": MODEL, "messages": COUNT, "seed": 5, "max_tokens": 12}
    texts, firsts = [], []
    for heat in (0, 1.5):
        plain = await sdk.chat.completions.create(temperature=heat, **requested)
        reported = await sdk.chat.completions.create(
            temperature=heat, logprobs=True, top_logprobs=20, **requested
        )
        texts += [(plain.choices[0].message.content, reported.choices[0].message.content)]
        assert reported.choices[0].logprobs is not None
        firsts.append((reported.choices[0].logprobs.content or [])[0].top_logprobs)
    assert all(plain == reported for plain, reported in texts)
    cold, hot = [[one.logprob for one in first] for first in firsts]
    assert hot == pytest.approx(cold, abs=ROUNDED)
