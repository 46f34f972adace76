"""Conversations with tools, and the prompts that families of models make of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from transformers import PreTrainedTokenizerFast

from engine.messages import PLAIN, Message, ReplySpec, Request, Tool, ToolCall
from engine.prompts.prompt import PromptBuilder
from engine.text.formats import detect_format
from engine.text.parser import ReplyFactory, ReplyPrefix
from engine.text.reply_text import ReplyCache
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


def prompt(
    name: str, *messages: Message, spec: ReplySpec = PLAIN, memory: ReplyCache | None = None
) -> list[int]:
    own = memory.of("") if memory is not None else None
    return builder(name).prompt(messages, spec, own, most=100_000).token_ids


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


def write(
    name: str, token_ids: Sequence[int], memory: ReplyCache, spec: ReplySpec = TOOLS, opened: str = ""
) -> str:
    """Let a model write a reply, and return it as the engine tells what was written."""
    request = Request("r", (), spec=spec)
    replies = ReplyFactory(tokenizer(name), detect_format(tokenizer(name)))
    reply, _ = replies.begin(request, ReplyPrefix(opened), memory.notes(""))
    reported = [piece for token in token_ids for piece in reply.push(token).pieces]
    reported += reply.flush()
    return reply.written or "".join(piece for piece in reported if isinstance(piece, str))
