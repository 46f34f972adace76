"""The values that describe a reply's format: regions, what opens and closes each, and what is inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import regex

from engine.grammar.compiler import CallForm, ThoughtForm
from engine.reply_spec import Tool
from engine.text.reply_text import Call

Pattern = regex.Pattern[str]


class Kind(Enum):
    """What the inside of a region is."""

    TEXT = auto()
    THOUGHT = auto()
    CALLS = auto()
    NOTHING = auto()
    """Only a delimiter, which opens no region."""


class Where(Enum):
    """Where in a reply a region may open."""

    ANYWHERE = auto()
    START = auto()
    """Before any text and any call."""
    BEHIND_A_CALL = auto()


@dataclass(frozen=True, slots=True)
class CallRegion:
    """A region of calls as it was written, from its opening to its close.

    `raw[begin:end]` is the text between the delimiters. `name`: the call's name, if the opening has it.
    """

    raw: str
    begin: int
    end: int
    name: str | None = None

    @property
    def inside(self) -> str:
        """The text between the delimiters."""
        return self.raw[self.begin : self.end]


Read = Callable[[CallRegion, Sequence[Tool]], tuple[Call, ...]]
"""Reads the calls of a region, for a model that was shown these tools. Raises ValueError if they are malformed."""


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A mark in a reply's text. `grows`: a match at the end of the text so far may still become another one."""

    pattern: Pattern
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a reply that a format knows.

    `close`: without one the region reaches to the reply's end, or to the end of its JSON.
    `is_json`: one object or array, from the opening's group `value` on; the opening's group `name` may name the call.
    `whole`: nothing else may be in the reply, and all calls must name tools that were shown.
    `more`: what may separate several values in a region that is `whole`. `ends_with_reply`: it may lack its close.
    """

    kind: Kind
    opening: Delimiter
    close: Delimiter | None = None
    where: Where = Where.ANYWHERE
    read: Read | None = None
    is_json: bool = False
    whole: bool = False
    more: Pattern | None = None
    ends_with_reply: bool = False


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model writes its replies.

    `name` is for people. `markers`: the parts of its delimiters that may be special tokens of a tokenizer. `outside`: the
    kind of text outside all regions. `anchor`: where in a prompt the assistant's message begins. Without an anchor, the
    match of `opened` at a prompt's end belongs to the reply. `call_form`, `thought_form`: the forms of calls and thoughts
    for grammars; None if grammars can't write them.
    """

    name: str
    regions: tuple[Region, ...]
    markers: tuple[str, ...] = ()
    outside: Kind = Kind.TEXT
    anchor: Pattern | None = None
    opened: Pattern | None = None
    call_form: CallForm | None = None
    thought_form: ThoughtForm | None = None

    @property
    def has_calls(self) -> bool:
        """Whether the model can write calls."""
        return any(region.kind is Kind.CALLS for region in self.regions)

    def regions_for(self, tools: Sequence[Tool]) -> tuple[Region, ...]:
        """Return the regions that are parsed in a reply. Those of calls count only if its model was shown tools."""
        return tuple(region for region in self.regions if tools or region.kind is not Kind.CALLS)

    def opening(self, prompt: str) -> str:
        """Return the end of a prompt that belongs to the reply, since a template may open the reasoning itself."""
        if self.anchor is None:
            match = None if self.opened is None else self.opened.search(prompt)
            return "" if match is None else match.group()
        ends = [match.end() for match in self.anchor.finditer(prompt)]
        return prompt[ends[-1] :] if ends else ""
