"""What a reply's format is made of: regions, each with what opens it, what closes it and what is inside. Values alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import regex

from engine.grammar.forms import CallForm, ThoughtForm
from engine.reply_spec import Tool
from engine.text.pieces import Call

Pattern = regex.Pattern[str]


class Kind(Enum):
    """What the inside of a region is."""

    TEXT = auto()
    THOUGHT = auto()
    CALLS = auto()
    NOTHING = auto()
    """A delimiter alone: no region opens."""


class Where(Enum):
    """Where in a reply a region may open."""

    ANYWHERE = auto()
    START = auto()
    """Before any text and any call."""
    BEHIND_A_CALL = auto()


@dataclass(frozen=True, slots=True)
class Found:
    """A region of calls as it was written, from its opening to its close.

    `raw[begin:end]` is what the delimiters are around. `name`: what the opening tells of the call's name.
    """

    raw: str
    begin: int
    end: int
    name: str | None = None

    @property
    def inside(self) -> str:
        """What the delimiters are around."""
        return self.raw[self.begin : self.end]


Read = Callable[[Found, Sequence[Tool]], tuple[Call, ...]]
"""Makes calls of a region, for a model that was shown these tools. Raises ValueError where they are malformed."""


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A mark in a reply's text. `grows`: a match at the end of what came so far may still become another one."""

    pattern: Pattern
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a reply that a format knows.

    `close`: without one it reaches to the reply's end, or, where it is JSON, to the end of that.
    `is_json`: one object or array, from the opening's group `value` on; the opening's group `name` may name the call.
    `whole`: nothing else may be in the reply, and all names have to be those of tools that were shown.
    `more`: what may follow it in a region that is `whole`, before another one. `ends_with_reply`: it may lack its close.
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

    `name` is for people. `markers`: what its delimiters are made of, where a tokenizer may have special tokens for
    them. `outside`: what is in no region. `anchor`: where in a prompt the assistant's message begins; where there is
    none, a prompt opens a reply by the match of `opened` at its end, if at all. `call_form`, `thought_form`: what
    grammars hold calls and thoughts to, where they can.
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
        """Return what is parsed of a reply, calls only where its model was shown tools."""
        return tuple(region for region in self.regions if tools or region.kind is not Kind.CALLS)

    def opening(self, prompt: str) -> str:
        """Return the end of a prompt that belongs to the reply already: a template may open the reasoning itself."""
        if self.anchor is None:
            match = None if self.opened is None else self.opened.search(prompt)
            return "" if match is None else match.group()
        ends = [match.end() for match in self.anchor.finditer(prompt)]
        return prompt[ends[-1] :] if ends else ""
