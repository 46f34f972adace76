"""Conversations with tools, and the prompts that families of models make of them."""

from __future__ import annotations

from functools import cache

from transformers import PreTrainedTokenizerFast

from engine.messages import PLAIN, Message, ReplySpec, Tool, ToolCall
from engine.prompts.prompt import PromptBuilder
from engine.text.formats import detect_format
from tests.engine.chat_families import FAMILIES

HELLO, MORE = Message("user", "hello there"), Message("user", "and more?")
ADD = Tool("add", "Adds numbers.", '{"type":"object","properties":{"a":{"type":"integer"}}}')
TOOLS = ReplySpec(tools=(ADD,))


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    return FAMILIES[name]()


@cache
def builder(name: str) -> PromptBuilder:
    return PromptBuilder(tokenizer(name), detect_format(tokenizer(name)))


def prompt(name: str, *messages: Message, spec: ReplySpec = PLAIN) -> list[int]:
    return builder(name).token_ids(messages, spec)


def text(name: str, *messages: Message, spec: ReplySpec = PLAIN) -> str:
    return str(tokenizer(name).decode(prompt(name, *messages, spec=spec)))


def called(call_id: str = "call_1", arguments: str = '{"a": 1}', **more: str) -> Message:
    """Return a message in which the assistant calls the tool."""
    return Message("assistant", more.pop("content", ""), calls=(ToolCall(call_id, "add", arguments),), **more)


def result(content: str = "42", call_id: str = "call_1") -> Message:
    return Message("tool", content, call_id=call_id)


def ids(name: str, *parts: str) -> list[int]:
    """Return the tokens of a text as a model may spell it that splits it into these parts."""
    return [token for part in parts for token in tokenizer(name).encode(part, add_special_tokens=False)]
