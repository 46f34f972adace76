"""What a title is made of, and what is made of what a model wrote for one. Pure."""

from __future__ import annotations

import re

from engine.messages import Message

MAX_CHARS = 80
"""Of a title, whoever wrote it; people may write longer ones."""
READ_CHARS = 2000
"""Of a message that the model reads for a title."""
INSTRUCTION = (
    "Write a title for this conversation, of at most five words, in the language of the conversation. "
    "Answer with the title alone."
)

_ATTACHED = re.compile(r"(?:\A|\n\n)\[(?P<name>[^\n\]]{1,200})\]\n~{4,}\n")
"""Where texts begin that the page puts behind a message."""
_MARKS = "*_`'\"\u201c\u201d\u201e\u00ab\u00bb"
"""What Markdown and quotation put around words."""
_NAME = re.compile(r"title\s*[:\uff1a]\s*", re.IGNORECASE)


def first_title(content: str) -> str:
    """Return the title that a conversation has at first: the beginning of its first message, else what came with it."""
    attached = _ATTACHED.search(content)
    said = content if attached is None else content[: attached.start()]
    named = "" if attached is None else attached["name"]
    return " ".join((said if said.strip() else named).split())[:MAX_CHARS]


def asked(messages: tuple[Message, ...], reply: str) -> tuple[Message, ...]:
    """Return what a model is asked behind a first exchange: `messages` are the prompt of the reply, which kept pages have."""
    return (*messages, Message("assistant", reply), Message("user", INSTRUCTION))


def written_title(text: str) -> str:
    """Return the title in what a model wrote: its first line without decoration, or empty where there is none."""
    line = next((line for line in map(str.strip, text.splitlines()) if line), "")
    while (bare := _unnamed(line.lstrip(f"#{_MARKS} ")).rstrip(f".\u3002{_MARKS} ")) != line:
        line = bare
    return first_title(line) if any(one.isalnum() for one in line) else ""


def _unnamed(line: str) -> str:
    named = _NAME.match(line)
    return line if named is None else line[named.end() :]
