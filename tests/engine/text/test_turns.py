"""Turns over real tokens: a model thinks, calls and goes on, and each turn reuses what was computed for the one before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from engine.loading.loader import load
from engine.machine import EngineOptions
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
from engine.process.dispatcher import RequestBuilder
from engine.prompts.prompt import JobHandler, PromptBuilder
from engine.scheduling.core import EngineCore
from engine.text.formats import detect_format
from engine.text.parser import ReplyFactory
from engine.text.reply_text import PreparedRequest
from tests.engine.chat_families import FAMILIES
from tests.engine.replies import HELLO, text_of
from tests.engine.tiny_models import end_of, run_out

GREEDY = Params(do_sample=False, max_new_tokens=50)
TOOLS = ReplySpec(tools=(Tool("add", "Adds numbers."),))
WORDS = (
    *("<think>", "Sums", "are easy.", "</think>", "Well:", "<tool_call>"),
    *('{"name":"add",', '"arguments":{"a":1}}', "</tool_call>"),
)
"""What the model of the tests says, each a token."""


class Engine:
    """A core and what prepares its requests, on one thread."""

    def __init__(self, folder: Path) -> None:
        model = load(EngineOptions(model=str(folder), device="cpu", dtype="float32", max_batch=2))
        form = detect_format(model.tokenizer)
        self.core = EngineCore(model)
        self.prompts = PromptBuilder(model.tokenizer, form)
        self._builder = JobHandler(self.prompts)
        self._preparer = RequestBuilder(
            ReplyFactory(model.tokenizer, form), model.defaults, context_tokens=model.context_tokens
        )

    def turn(self, *messages: Message, params: Params, spec: ReplySpec) -> tuple[list[Output], Finished]:
        """A whole turn: what is told of it, and its end."""
        request = Request("r", messages, params, spec=spec)
        made = self._builder.build(self._preparer.job(request), lambda: False)
        prepared = self._preparer.prepared(request, made)
        assert isinstance(prepared, PreparedRequest)
        outputs = run_out(self.core, prepared)
        return outputs, end_of(outputs, "r")


def as_message(outputs: Sequence[Output]) -> Message:
    calls = [output for output in outputs if isinstance(output, ToolCallOutput)]
    return Message(
        "assistant",
        text_of(outputs),
        reasoning=text_of(outputs, Reasoning),
        calls=tuple(ToolCall(f"call_{n}", call.name, call.arguments) for n, call in enumerate(calls)),
    )


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Over a model that always says the same words, since each of its tokens follows from the one before."""
    folder = tmp_path_factory.mktemp("models") / "calls"
    tokenizer = FAMILIES["qwen"]()
    newline = tokenizer.convert_ids_to_tokens(tokenizer.encode("assistant\n"))[-1]
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in WORDS])
    tokenizer.eos_token = "<|im_end|>"
    chain = tokenizer.convert_tokens_to_ids([newline, *WORDS, "<|im_end|>"])
    assert len(set(chain)) == len(chain)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=512, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(*model.model.embed_tokens.weight.shape))
        # Not zero, since the loader compares the model's logits with and without the cache.
        model.lm_head.weight.normal_(std=0.01)
        model.lm_head.weight[chain[1:], chain[:-1]] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Engine(folder)


def test_a_reply_thinks_speaks_and_calls_and_the_turn_behind_it_reuses_the_prompt(calls: Engine) -> None:
    outputs, end = calls.turn(*HELLO, params=GREEDY, spec=TOOLS)
    assert as_message(outputs) == Message(
        "assistant", "Well:", reasoning="Sumsare easy.", calls=(ToolCall("call_0", "add", '{"a":1}'),)
    )
    assert isinstance(outputs[-2], ToolCallOutput)
    assert (end.reason, end.generated_tokens) == (FinishReason.STOP, len(WORDS) + 1)
    told = [one.tokens for one in outputs if isinstance(one, Chunk | Reasoning | ToolCallOutput)]
    assert told == [2, 1, 2, 4], "each piece has the tokens that come before it, and a call all of its own"
    talk = (*HELLO, as_message(outputs), Message("tool", "1", call_id="call_0"))
    _, second = calls.turn(*talk, params=GREEDY, spec=TOOLS)
    assert second.cached_tokens >= end.prompt_tokens - 1
    assert second.prompt_tokens == len(calls.prompts.token_ids(talk, TOOLS))


@pytest.mark.parametrize("tokens", [1, 2, 4, 5])
def test_a_cut_reply_goes_on_to_what_it_would_have_been(calls: Engine, tokens: int) -> None:
    whole, _ = calls.turn(*HELLO, params=GREEDY, spec=TOOLS)
    cut = msgspec.structs.replace(GREEDY, max_new_tokens=tokens)
    outputs, first = calls.turn(*HELLO, params=cut, spec=TOOLS)
    goes_on = ReplySpec(tools=TOOLS.tools, continues=True)
    more, second = calls.turn(*HELLO, as_message(outputs), params=GREEDY, spec=goes_on)
    assert as_message([*outputs, *more]) == as_message(whole)
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
def test_calls_and_ends_are_as_they_were_asked_for(
    calls: Engine, spec: ReplySpec, params: dict[str, Any], shown: str, tokens: int
) -> None:
    asked = msgspec.structs.replace(GREEDY, top_logprobs=1, **params)
    outputs, end = calls.turn(*HELLO, params=asked, spec=spec)
    assert (text_of(outputs, Reasoning), text_of(outputs)) == ("Sumsare easy.", shown)
    assert any(isinstance(one, ToolCallOutput) for one in outputs) == (shown == "Well:")
    assert end.generated_tokens == tokens
    told = [one.end for output in outputs if isinstance(output, Chunk) for one in output.logprobs]
    assert told == [end for end in accumulate(map(len, WORDS[4:])) if end <= len(shown)]
