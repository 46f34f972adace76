"""Replies that are held to grammars: a tokenizer with control tokens, a tiny model for it, and the text of its replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.execution.executor import LoadedModel
from engine.grammar import (
    CallForm,
    GrammarCompiler,
    GrammarSource,
    GrammarWriter,
    ThoughtForm,
    Vocabulary,
    vocabulary_of,
)
from engine.messages import Format, JsonSchema, Output, ReplySpec
from engine.text.reply_text import PreparedRequest, SamplingParams
from tests.engine.conftest import small_tokenizer
from tests.engine.families import WINDOW, sized
from tests.engine.tiny_models import Numbers, greedy, served_module, tokens_of

CITY = '{"type":"object","properties":{"city":{"enum":["Paris","Rome"]},"days":{"type":"integer","minimum":1,"maximum":14}},"required":["city","days"],"additionalProperties":false}'
CITIES = JsonSchema(CITY)
HERMES_FORM = CallForm()
SAMPLED = greedy(do_sample=True, max_new_tokens=80, seed=1)
BEYOND = 3
"""How many ids the model has beyond the tokenizer's."""


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and some words, with `<tool_call>` and `<think>` as added tokens, `<|call|>` as special."""
    made = small_tokenizer()
    for name in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        made.add_tokens(AddedToken(name, special=False, normalized=False))
    made.add_tokens(AddedToken("<|call|>", special=True))
    return made


@cache
def vocabulary() -> Vocabulary:
    return vocabulary_of(tokenizer(), size=len(tokenizer()) + BEYOND)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(vocabulary())


def writer(calls: CallForm | None = None, thoughts: ThoughtForm | None = None) -> GrammarWriter:
    return GrammarWriter(vocabulary().specials, vocabulary().loose, calls=calls, thoughts=thoughts)


def source_of(reply_format: Format) -> GrammarSource:
    source = writer().write(ReplySpec(format=reply_format))
    assert source is not None
    return source


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer()(text, add_special_tokens=False)["input_ids"]
    return ids


def served(*, max_batch: int = 4, kv_tokens: int = 4 * WINDOW) -> LoadedModel:
    """Return a Llama with random weights, the same ones each time."""
    torch.manual_seed(1)
    module = LlamaForCausalLM(LlamaConfig(**sized(vocab_size=vocabulary().size))).eval()
    loaded = served_module(module, tokenizer(), max_batch, kv_tokens)
    return replace(loaded, eos_ids=frozenset(vocabulary().ends), grammars=compiler())


def constrained_request(
    constraint: Format | GrammarSource,
    request_id: str,
    tokens: Sequence[int],
    sampling: SamplingParams = SAMPLED,
    reply: Numbers | None = None,
) -> PreparedRequest:
    """Return a request whose reply has a format."""
    source = constraint if isinstance(constraint, GrammarSource) else source_of(constraint)
    return PreparedRequest(request_id, tokens, sampling, reply or Numbers(), grammar=source)


def text_of(outputs: Sequence[Output], request_id: str) -> str:
    """Return the text of a reply that `Numbers` told."""
    text: str = tokenizer().decode(tokens_of(outputs, request_id))
    return text
