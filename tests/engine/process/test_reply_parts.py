"""A real model in the real engine's process thinks, calls a tool, and goes on from what was kept of that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from engine.errors import PromptRejected
from engine.messages import (
    PLAIN,
    Chunk,
    Finished,
    FinishReason,
    Message,
    Output,
    Params,
    Reasoning,
    ReplySpec,
    Request,
    Tool,
    ToolCall,
    ToolCallOutput,
)
from engine.process.client import EngineClient
from tests.coverage_tracing import coverage_enabled
from tests.engine.chain_model import write_chain_model
from tests.engine.chat_families import FAMILIES
from tests.engine.replies import engine_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = Message("user", "hello there")
TOOLS = ReplySpec(tools=(Tool("add", "Adds numbers."),))
WORDS = (
    "<think>",
    "Sums",
    "are easy.",
    "</think>",
    "Well:",
    "<tool_call>",
    '{"name":"add",',
    '"arguments":{"a":1}}',
    "</tool_call>",
)
WRITTEN = "".join(WORDS)
GREEDY = Params(do_sample=False, max_new_tokens=50)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineClient]:
    folder: Path = tmp_path_factory.mktemp("models") / "calls"
    tokenizer = FAMILIES["qwen"]()
    newline = tokenizer.convert_ids_to_tokens(tokenizer.encode("assistant\n"))[-1]
    write_chain_model(folder, tokenizer, WORDS, behind=newline, end="<|im_end|>")
    async with engine_of(folder, traced=coverage_enabled()) as client:
        yield client


async def outputs_of(engine: EngineClient, request: Request) -> tuple[list[Output], Finished]:
    """What is told of a reply, and its end."""
    _, *outputs, end = [output async for output in engine.generate(request)]
    assert isinstance(end, Finished)
    return outputs, end


def make_request(*messages: Message, spec: ReplySpec = TOOLS, params: Params = GREEDY) -> Request:
    return Request("r", messages, params, spec=spec)


def as_message(outputs: Sequence[Output]) -> Message:
    calls = [output for output in outputs if isinstance(output, ToolCallOutput)]
    return Message(
        "assistant",
        text_of(outputs, Chunk),
        reasoning=text_of(outputs, Reasoning),
        calls=tuple(ToolCall(f"call_{n}", call.name, call.arguments) for n, call in enumerate(calls)),
    )


async def test_a_reply_thinks_speaks_and_calls(engine: EngineClient) -> None:
    assert engine.facts is not None
    assert {"tools", "reasoning", "template", "continue", "raw"} <= set(engine.facts.features)
    outputs, end = await outputs_of(engine, make_request(HELLO))
    assert text_of(outputs, Reasoning) == "Sumsare easy."
    assert text_of(outputs, Chunk) == "Well:"
    assert [(one.name, one.arguments) for one in outputs if isinstance(one, ToolCallOutput)] == [
        ("add", '{"a":1}')
    ]
    assert [type(one) for one in outputs][-1] is ToolCallOutput
    assert (end.reason, end.generated_tokens) == (FinishReason.STOP, len(WORDS) + 1)
    assert sum(one.tokens for one in outputs if isinstance(one, Chunk | Reasoning | ToolCallOutput)) == len(
        WORDS
    )


async def test_the_turn_behind_a_call_reuses_the_promp(engine: EngineClient) -> None:
    outputs, first = await outputs_of(engine, make_request(HELLO))
    reply, result = as_message(outputs), Message("tool", "1", call_id="call_0")
    _, second = await outputs_of(engine, make_request(HELLO, reply, result))
    assert second.cached_tokens >= first.prompt_tokens - 1
    counted = await engine.count_tokens((HELLO, reply, result), spec=TOOLS)
    assert counted == second.prompt_tokens


async def test_a_raw_prompt_is_answered_by_text_alone(engine: EngineClient) -> None:
    """The same tokens as the template makes, and nothing of the reply is parsed."""
    raw = Message("user", "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n")
    outputs, end = await outputs_of(engine, make_request(raw, spec=ReplySpec(raw=True)))
    assert text_of(outputs, Chunk) == WRITTEN
    assert not any(isinstance(one, Reasoning | ToolCallOutput) for one in outputs)
    assert (end.reason, end.generated_tokens) == (FinishReason.STOP, len(WORDS) + 1)
    assert await engine.count_tokens((raw,), spec=ReplySpec(raw=True)) == end.prompt_tokens


@pytest.mark.parametrize("tokens", [1, 2, 4, 5])
async def test_a_cut_reply_goes_on_to_what_it_would_have_been(engine: EngineClient, tokens: int) -> None:
    whole, _ = await outputs_of(engine, make_request(HELLO))
    outputs, first = await outputs_of(
        engine, make_request(HELLO, params=Params(do_sample=False, max_new_tokens=tokens))
    )
    goes_on = ReplySpec(tools=TOOLS.tools, continues=True)
    more, second = await outputs_of(engine, make_request(HELLO, as_message(outputs), spec=goes_on))
    for kind in (Reasoning, Chunk):
        assert text_of([*outputs, *more], kind) == text_of(whole, kind)
    assert next(one for one in more if isinstance(one, ToolCallOutput)).arguments == '{"a":1}'
    assert second.cached_tokens >= first.prompt_tokens - 1


@pytest.mark.parametrize(
    ("spec", "params", "shown", "tokens"),
    [
        (PLAIN, {}, "".join(WORDS[4:]), len(WORDS) + 1),
        (TOOLS, {"max_new_tokens": len(WORDS) - 2}, "".join(WORDS[4:-2]), len(WORDS) - 2),
        (TOOLS, {"stop": ("easy", "ll")}, "We", 5),
        (ReplySpec(tools=TOOLS.tools, parallel_calls=False), {}, "Well:", len(WORDS)),
    ],
    ids=[
        "without tools a call is text",
        "and where it is cut off",
        "stop strings end text",
        "one call is enough",
    ],
)
async def test_calls_and_ends_are_as_they_were_asked_for(
    engine: EngineClient, spec: ReplySpec, params: dict[str, Any], shown: str, tokens: int
) -> None:
    asked = msgspec.structs.replace(GREEDY, top_logprobs=1, **params)
    outputs, end = await outputs_of(engine, make_request(HELLO, spec=spec, params=asked))
    assert (text_of(outputs, Reasoning), text_of(outputs)) == ("Sumsare easy.", shown)
    assert any(isinstance(one, ToolCallOutput) for one in outputs) == (shown == "Well:")
    assert end.generated_tokens == tokens
    told = [one.end for output in outputs if isinstance(output, Chunk) for one in output.logprobs]
    assert told == ([] if shown == "We" else sorted(told))
    assert shown == "We" or told[-1] == len(shown)


async def test_a_spec_that_cannot_be_followed_is_refused_with_its_field(engine: EngineClient) -> None:
    for field, spec in {
        "template": ReplySpec(template={"tokenize": True}),
        "tools": ReplySpec(tools=(Tool("add", parameters="[]"),)),
        "continues": ReplySpec(continues=True),
    }.items():
        with pytest.raises(PromptRejected) as refused:
            await engine.count_tokens((HELLO,), spec=spec)
        assert refused.value.field == field
        (end,) = [output async for output in engine.generate(make_request(HELLO, spec=spec))]
        assert isinstance(end, Finished)
        assert end.reason is FinishReason.ERROR
