"""A table of how families of models write reasoning and calls, for tokenizers without a response template.

Hermes: Qwen2.5, Qwen3 and models tuned in ChatML. Llama 3: since 3.1. Mistral: since 7B v0.3, and with `[ARGS]` since
Small 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import regex

from engine.grammar import forms
from engine.grammar.forms import CallForm, ThoughtForm
from engine.parsing.calls import json_calls
from engine.parsing.formats import Delimiter, Kind, Pattern, Region, Where

_BLANKS = r"\s{0,16}"


@dataclass(frozen=True, slots=True)
class Family:
    """How a family writes calls. `markers`: as in `ReplyFormat`.

    A model belongs to it if each of `known_by` is in its chat template or is the name of a token, and all of `spelled`
    are in the template itself.
    """

    name: str
    regions: tuple[Region, ...]
    markers: tuple[str, ...]
    known_by: tuple[str, ...]
    form: CallForm | None = None
    """The form of calls for grammars. None: there is none, and a call can't be forced."""
    spelled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning is between two marks, at the start of a reply."""

    open: str
    close: str

    @property
    def region(self) -> Region:
        """The region between the marks."""
        return Region(
            Kind.THOUGHT,
            _delimiter(_BLANKS + regex.escape(self.open)),
            _delimiter(regex.escape(self.close)),
            Where.START,
        )

    @property
    def form(self) -> ThoughtForm:
        """The form of thoughts for grammars."""
        return ThoughtForm(self.open, self.close)

    @property
    def opened(self) -> Pattern:
        """The end of a prompt that has opened the reasoning."""
        return regex.compile(rf"{regex.escape(self.open)}\s*\Z")


def _delimiter(pattern: str) -> Delimiter:
    return Delimiter(regex.compile(pattern))


_LLAMA_CALLS = json_calls("parameters", "arguments")
_LLAMA_KEYS = '"(?:name|type|function|parameters|arguments)"'

HERMES = Family(
    "hermes",
    (
        Region(
            Kind.CALLS,
            _delimiter(rf"<tool_call>{_BLANKS}(?P<value>\{{)"),
            _delimiter(rf"{_BLANKS}</tool_call>"),
            read=json_calls("arguments", "parameters"),
            is_json=True,
        ),
    ),
    markers=("<tool_call>", "</tool_call>"),
    known_by=("<tool_call>", "</tool_call>"),
    form=forms.HERMES,
)
"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`"""

LLAMA = Family(
    "llama 3",
    (
        Region(
            Kind.CALLS,
            _delimiter(rf"<\|python_tag\|>{_BLANKS}(?P<value>\{{)"),
            read=_LLAMA_CALLS,
            is_json=True,
        ),
        Region(
            Kind.CALLS,
            _delimiter(rf";{_BLANKS}(?P<value>\{{)"),
            where=Where.BEHIND_A_CALL,
            read=_LLAMA_CALLS,
            is_json=True,
        ),
        Region(
            Kind.CALLS,
            _delimiter(rf"{_BLANKS}(?P<value>\{{){_BLANKS}{_LLAMA_KEYS}"),
            where=Where.START,
            read=_LLAMA_CALLS,
            is_json=True,
            whole=True,
            more=regex.compile(rf"{_BLANKS};{_BLANKS}(?P<value>\{{)"),
        ),
    ),
    markers=("<|python_tag|>",),
    known_by=("<|python_tag|>", "parameters", "tool_calls"),
    form=forms.LLAMA,
)
"""`<|python_tag|>{"name": …, "parameters": {…}}`, or such an object as the whole reply; `;` separates several."""

MISTRAL = Family(
    "mistral",
    (
        Region(
            Kind.CALLS,
            _delimiter(
                rf"\[TOOL_CALLS\]{_BLANKS}(?:(?P<value>\[)(?=[\s\{{])|(?P<name>[\w.-]{{1,128}})"
                rf"(?:\[CALL_ID\]\w{{1,64}})?\[ARGS\]{_BLANKS}(?P<value>\{{))"
            ),
            read=json_calls("arguments", "parameters"),
            is_json=True,
        ),
    ),
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    known_by=("[TOOL_CALLS]",),
    form=forms.MISTRAL_LIST,
)
"""`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call."""

MISTRAL_NAMED = replace(MISTRAL, form=forms.MISTRAL_NAMED, spelled=("[TOOL_CALLS]", "[ARGS]"))
"""Both forms are read. The template decides which is written, since tokenizers of models with lists have `[ARGS]`, too."""

CALLING = (HERMES, MISTRAL_NAMED, MISTRAL, LLAMA)
"""The families, in the order in which they are tried."""

OTHER_CALLS = ("<function=", "tool▁calls▁begin", "<|tool_calls_section_begin|>", "<arg_key>")
"""Templates with these marks write calls in other ways, though they may have marks of the families, too."""

THINKING = (Reasoning("<think>", "</think>"), Reasoning("[THINK]", "[/THINK]"))
