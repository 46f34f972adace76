"""The prompt for a title, and the title in the model's answer. Pure."""

from __future__ import annotations

import re

from engine.messages import Message

MAX_CHARS = 80
"""Characters of a title that the server makes; people may write longer ones."""
READ_CHARS = 2000
"""Characters of a message that are read for a title, by the model or here: a message may have millions."""
INSTRUCTION = (
    "Write a title for this conversation, of at most five words, in the language of the conversation. "
    "Answer with the title alone."
)

_ATTACHED = re.compile(r"(?:\A|\n\n)\[(?P<name>[^\n\]]{1,200})\]\n~{4,}\n")
"""The beginning of a text that the page attaches to a message."""
_MARKS = "*_`'\"\u201c\u201d\u201e\u00ab\u00bb"
"""Marks of Markdown and quotation around words."""
_SHOWN = re.compile(r"\S")
_NAME = re.compile(r"title\s*[:\uff1a]\s*", re.IGNORECASE)


def first_title(content: str) -> str:
    """Return a conversation's initial title: the beginning of its first message, else the name of an attachment."""
    shown = _SHOWN.search(content)
    if shown is None:
        return ""
    beginning = content[shown.start() : shown.start() + READ_CHARS]
    attached = _ATTACHED.search(beginning)
    typed = beginning if attached is None else beginning[: attached.start()]
    named = "" if attached is None else attached["name"]
    return " ".join((typed if typed.strip() else named).split())[:MAX_CHARS]


def title_prompt(messages: tuple[Message, ...], reply: str) -> tuple[Message, ...]:
    """Return the prompt for a title. It begins with `messages`, the reply's prompt, whose keys and values are kept."""
    return (*messages, Message("assistant", reply), Message("user", INSTRUCTION))


def parse_title(text: str) -> str:
    """Return the title in a model's answer: its first line without decoration; empty if there is none."""
    line = next((line for line in map(str.strip, text.splitlines()) if line), "")
    while (bare := _unnamed(line.lstrip(f"#{_MARKS} ")).rstrip(f".\u3002{_MARKS} ")) != line:
        line = bare
    return first_title(line) if any(one.isalnum() for one in line) else ""


def _unnamed(line: str) -> str:
    named = _NAME.match(line)
    return line if named is None else line[named.end() :]
