"""The steps of a script: pieces of text, thoughts and calls, each of them one token. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import msgspec

from engine.errors import PromptRejected
from engine.messages import Message
from engine.reply_spec import PLAIN, Regex, ReplySpec

_WORDS = re.compile(r"\s*\S+|\s+")


class Thought(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class Call(msgspec.Struct, frozen=True):
    """A call of a tool. `arguments`: the text of a JSON object. `call_id`: the one that an upstream would give."""

    name: str
    arguments: str = "{}"
    call_id: str = ""


Step = str | Thought | Call


def words_of(text: str) -> list[str]:
    """Return a text's words, each with the space before it."""
    return _WORDS.findall(text)


def as_written(steps: Sequence[Step]) -> str:
    """Return the whole reply as a model writes it; empty if it is only text."""
    if all(isinstance(step, str) for step in steps):
        return ""
    written = []
    for thinks, run in groupby(steps, lambda step: isinstance(step, Thought)):
        text = "".join(map(_spelled, run))
        written.append(f"<think>{text}</think>" if thinks else text)
    return "".join(written)


def _spelled(step: Step) -> str:
    match step:
        case Thought(text):
            return text
        case Call(name, arguments):
            return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
        case _:
            return step


def count_words(messages: Sequence[Message], spec: ReplySpec = PLAIN) -> int:
    """Return the scripted tokenizer's count: the words of messages and of tools, plus four for each of them.

    A raw prompt counts only its words.
    """
    calls = [call for message in messages for call in message.calls]
    texts = [message.content for message in messages] + [message.reasoning for message in messages]
    texts += [f"{call.name} {call.arguments}" for call in calls]
    texts += [f"{tool.name} {tool.description} {tool.parameters}" for tool in spec.shown_tools]
    framed = 0 if spec.raw else len(messages) + len(spec.shown_tools)
    return sum(len(text.split()) for text in texts) + 4 * framed


def refuse_bad_format(spec: ReplySpec) -> None:
    """Raise PromptRejected for an invalid regular expression, like an engine that can't compile it."""
    if isinstance(spec.format, Regex):
        try:
            re.compile(spec.format.pattern)
        except re.error as error:
            raise PromptRejected(
                f"The format's pattern can't be compiled: {error}.", field="format"
            ) from error
