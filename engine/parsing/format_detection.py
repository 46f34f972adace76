"""Finds out how a model writes its replies, by its tokenizer's response template, or else its chat template and tokens."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import regex

from engine.grammar.compiler import (
    HERMES_FORM,
    LLAMA_FORM,
    MISTRAL_LIST_FORM,
    MISTRAL_NAMED_FORM,
    CallForm,
    ThoughtForm,
)
from engine.parsing.formats import Delimiter, Kind, Pattern, Region, ReplyFormat, Where
from engine.parsing.response_templates import json_calls, response_format

_BLANKS = r"\s{0,16}"
_LLAMA_CALLS = json_calls("parameters", "arguments")
_LLAMA_KEYS = '"(?:name|type|function|parameters|arguments)"'

OTHER_CALLS = ("<function=", "tool▁calls▁begin", "<|tool_calls_section_begin|>", "<arg_key>")
"""Templates with these marks write calls in other ways, though they may have marks of the families, too."""

log = logging.getLogger(__name__)


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
    form=HERMES_FORM,
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
    form=LLAMA_FORM,
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
    form=MISTRAL_LIST_FORM,
)
"""`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call."""


MISTRAL_NAMED = replace(MISTRAL, form=MISTRAL_NAMED_FORM, spelled=("[TOOL_CALLS]", "[ARGS]"))
"""Both forms are read. The template decides which is written, since tokenizers of models with lists have `[ARGS]`, too."""


CALLING = (HERMES, MISTRAL_NAMED, MISTRAL, LLAMA)
"""The families, in the order in which they are tried."""


THINKING = (Reasoning("<think>", "</think>"), Reasoning("[THINK]", "[/THINK]"))


def detect_format(tokenizer: Any) -> ReplyFormat | None:
    """Return how the model of a transformers tokenizer writes its replies; None if they are only text."""
    template = getattr(tokenizer, "response_template", None)
    if template:
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        try:
            return response_format(template, special)
        except ValueError as error:
            log.warning("the tokenizer's response template can't be used: %s", error)
    return family_format(templates_text(tokenizer), tokenizer.added_tokens_encoder)


def templates_text(tokenizer: Any) -> str:
    """Return a tokenizer's chat template, or all of its templates, one after the other."""
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""


def family_format(template: str, tokens: Collection[str]) -> ReplyFormat | None:
    """Return a model's format by its chat template and the names of its added tokens; None if no family fits."""
    calling, thinking = _calling(template, tokens), _thinking(template, tokens)
    if calling is None and thinking is None:
        return None
    names = [
        f"calls as {calling.name}" if calling else "",
        f"reasoning in {thinking.open}" if thinking else "",
    ]
    return ReplyFormat(
        ", ".join(filter(None, names)),
        (*(() if thinking is None else (thinking.region,)), *(() if calling is None else calling.regions)),
        markers=(
            *(() if thinking is None else (thinking.open, thinking.close)),
            *(() if calling is None else calling.markers),
        ),
        opened=None if thinking is None else thinking.opened,
        call_form=None if calling is None else calling.form,
        thought_form=None if thinking is None else thinking.form,
    )


def _calling(template: str, tokens: Collection[str]) -> Family | None:
    if any(mark in template for mark in OTHER_CALLS):
        return None
    return next((one for one in CALLING if _is_of(one, template, tokens)), None)


def _is_of(family: Family, template: str, tokens: Collection[str]) -> bool:
    spelled = all(mark in template for mark in family.spelled)
    return spelled and all(mark in template or mark in tokens for mark in family.known_by)


def _thinking(template: str, tokens: Collection[str]) -> Reasoning | None:
    return next(
        (
            one
            for one in THINKING
            if one.open in template or one.close in template or (one.open in tokens and one.close in tokens)
        ),
        None,
    )
