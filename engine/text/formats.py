"""How a model writes its replies: regions, what opens and closes each, and what is inside.

A format is found by the tokenizer's response template, or else by its chat template and tokens. With a response template,
our parser finds the delimiters, and transformers reads the calls. So a reply is parsed while it is written, within bounds,
and a malformed call breaks nothing. Fields other than `content`, `tool_calls` and those for reasoning are text.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import regex

from engine.grammar import CallForm, ThoughtForm
from engine.messages import Tool
from engine.text.reply_text import Call

if TYPE_CHECKING:
    from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

Pattern = regex.Pattern[str]


class Kind(Enum):
    """What the inside of a region is."""

    TEXT = auto()
    THOUGHT = auto()
    CALLS = auto()
    NOTHING = auto()
    """Not shown: a lone delimiter, or text outside all regions."""


class Where(Enum):
    """Where in a reply a region may open."""

    ANYWHERE = auto()
    START = auto()
    """Before any text and any call."""
    BEHIND_A_CALL = auto()


class CallRegion:
    """A region of calls as far as it is written, from its opening on. `name`: the call's name, if the opening has it."""

    def __init__(self, opening: str = "", name: str | None = None) -> None:
        self.name = name
        self.chars = self._begin = self._end = len(opening)
        self._parts = [opening]

    @property
    def raw(self) -> str:
        """All of the region."""
        return "".join(self._parts)

    @property
    def inside(self) -> str:
        """The text between the delimiters."""
        return self.raw[self._begin : self._end]

    def add(self, text: str, *, inside: bool = True) -> None:
        """Take more of the region. `inside`: it is not a part of the close."""
        self._parts.append(text)
        self.chars += len(text)
        self._end += len(text) if inside else 0


Read = Callable[[CallRegion, Sequence[Tool]], tuple[Call, ...]]
"""Reads the calls of a region, for a model that was shown these tools. Raises ValueError if they are malformed."""


@dataclass(frozen=True, slots=True)
class Delimiter:
    """A mark in a reply's text, with the white space before it.

    `grows`: a match that ends with the text so far may still become another.
    """

    pattern: Pattern
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a reply that a format knows.

    `close`: without one the region reaches to the reply's end, or to the end of its JSON.
    `is_json`: one object or array, from the opening's group `value` on; the opening's group `name` may name the call.
    `ends_with_reply`: the reply's end may close it.
    """

    kind: Kind
    opening: Delimiter
    close: Delimiter | None = None
    where: Where = Where.ANYWHERE
    read: Read | None = None
    is_json: bool = False
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
        """Return the regions to parse in a reply. Regions of calls count only if its model was shown `tools`."""
        return tuple(region for region in self.regions if tools or region.kind is not Kind.CALLS)

    def opening(self, prompt: str) -> str:
        """Return what belongs to the reply at a prompt's end, since a template may open the reasoning itself."""
        if self.anchor is None:
            match = None if self.opened is None else self.opened.search(prompt)
            return "" if match is None else match.group()
        ends = [match.end() for match in self.anchor.finditer(prompt)]
        return prompt[ends[-1] :] if ends else ""


log = logging.getLogger(__name__)


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
    calls, thinking = _calling(template, tokens), _thinking(template, tokens)
    if thinking is None:
        return calls
    marks = thinking.opening, thinking.closing
    opening, closing = map(regex.escape, marks)
    region = Region(Kind.THOUGHT, _delimiter(opening), _delimiter(closing), Where.START)
    opened, name = regex.compile(rf"{opening}\s*\Z"), f"reasoning in {thinking.opening}"
    if calls is None:
        return ReplyFormat(name, (region,), marks, opened=opened, thought_form=thinking)
    return replace(
        calls,
        name=f"{calls.name}, {name}",
        regions=(region, *calls.regions),
        markers=(*marks, *calls.markers),
        opened=opened,
        thought_form=thinking,
    )


def _calling(template: str, tokens: Collection[str]) -> ReplyFormat | None:
    if any(mark in template for mark in OTHER_CALLS):
        return None
    for family in CALLING:
        is_known = all(mark in template or mark in tokens for mark in family.known_by)
        if is_known and all(mark in template for mark in family.spelled):
            return family.format
    return None


def _thinking(template: str, tokens: Collection[str]) -> ThoughtForm | None:
    for one in THINKING:
        marks = one.opening, one.closing
        if any(mark in template for mark in marks) or all(mark in tokens for mark in marks):
            return one
    return None


@dataclass(frozen=True, slots=True)
class Family:
    """How a family writes calls.

    A model belongs to the family if each of `known_by` is in its chat template or names a token, and all of `spelled`
    are in the template itself.
    """

    format: ReplyFormat
    known_by: tuple[str, ...]
    spelled: tuple[str, ...] = ()


def _delimiter(pattern: str) -> Delimiter:
    return Delimiter(regex.compile(_BLANKS + pattern))


MOST_BLANKS = 16
"""The most characters of white space before a delimiter that belong to it. Earlier ones are text."""
_BLANKS = rf"\s{{0,{MOST_BLANKS}}}"
T = TypeVar("T")
LONGEST_NAME = 256
"""The most characters of a tool's name."""


def _read_json(
    found: CallRegion, tools: Sequence[Tool], keys: Sequence[str], *, is_bare: bool = False
) -> tuple[Call, ...]:
    """Read calls in JSON: an object, or a list of them. `keys`: possible keys of the arguments.

    If the opening of the region names the call, the object is its arguments. `is_bare`: without a mark, an object is a call
    only if it names a tool that was shown.
    """
    inside = found.inside.strip()
    if found.name is not None:
        return (call(found.name, inside),)
    if not inside.startswith("["):
        made = _call_of(inside, keys)
        if is_bare and made.name not in {tool.name for tool in tools}:
            raise ValueError("no tool has this name")
        return (made,)
    calls = tuple(_call_of(bytes(each).decode(), keys) for each in _decoded(_RAW_LIST, inside))
    if not calls:
        raise ValueError("the list of calls is empty")
    return calls


def _call_of(text: str, keys: Sequence[str]) -> Call:
    members = _decoded(_RAW_OBJECT, text)
    arguments = next((members[key] for key in keys if key in members), None)
    if arguments is None or "name" not in members:
        raise ValueError("a call needs a name and arguments")
    return call(_decoded(_NAME, members["name"]), bytes(arguments).decode())


def call(name: str, arguments: str) -> Call:
    """Return a call. Raises ValueError if its name is empty or too long, or its arguments are not a JSON object."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a call needs a name of at most {LONGEST_NAME} characters")
    _decoded(_OBJECT, arguments)
    return Call(name, arguments)


def _decoded(decoder: msgspec.json.Decoder[T], text: str | msgspec.Raw) -> T:
    """Decode JSON. Raises only ValueError."""
    try:
        return decoder.decode(text)
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error


_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, object])
_NAME = msgspec.json.Decoder(str)
_JSON_CALLS = partial(_read_json, keys=("arguments", "parameters"))
_LLAMA_CALLS = partial(_read_json, keys=("parameters", "arguments"))
_LLAMA_KEYS = '"(?:name|type|function|parameters|arguments)"'
OTHER_CALLS = ("<function=", "tool▁calls▁begin", "<|tool_calls_section_begin|>", "<arg_key>")
"""Templates with these marks write calls in other ways, even if they have marks of the families, too."""
HERMES = Family(
    ReplyFormat(
        "calls as hermes",
        (
            Region(
                Kind.CALLS,
                _delimiter(rf"<tool_call>{_BLANKS}(?P<value>\{{)"),
                _delimiter("</tool_call>"),
                read=_JSON_CALLS,
                is_json=True,
            ),
        ),
        markers=("<tool_call>", "</tool_call>"),
        call_form=CallForm(),
    ),
    known_by=("<tool_call>", "</tool_call>"),
)
"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`"""
LLAMA = Family(
    ReplyFormat(
        "calls as llama 3",
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
                _delimiter(rf"(?P<value>\{{){_BLANKS}{_LLAMA_KEYS}"),
                where=Where.START,
                read=partial(_LLAMA_CALLS, is_bare=True),
                is_json=True,
            ),
        ),
        markers=("<|python_tag|>",),
        call_form=CallForm("<|python_tag|>", "", arguments_key="parameters", between=";", bare=True),
    ),
    known_by=("<|python_tag|>", "parameters", "tool_calls"),
)
"""`<|python_tag|>{"name": …, "parameters": {…}}`, or a reply that begins with such an object; `;` separates several."""
MISTRAL = Family(
    ReplyFormat(
        "calls as mistral",
        (
            Region(
                Kind.CALLS,
                _delimiter(
                    rf"\[TOOL_CALLS\]{_BLANKS}(?:(?P<value>\[)(?=[\s\{{])|(?P<name>[\w.-]{{1,128}})"
                    rf"(?:\[CALL_ID\]\w{{1,64}})?\[ARGS\]{_BLANKS}(?P<value>\{{))"
                ),
                read=_JSON_CALLS,
                is_json=True,
            ),
        ),
        markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        call_form=CallForm("[TOOL_CALLS]", "", as_list=True),
    ),
    known_by=("[TOOL_CALLS]",),
)
"""`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call."""
MISTRAL_NAMED = Family(
    replace(MISTRAL.format, call_form=CallForm("[TOOL_CALLS]", "", name_end="[ARGS]", id_mark="[CALL_ID]")),
    known_by=MISTRAL.known_by,
    spelled=("[TOOL_CALLS]", "[ARGS]"),
)
"""Both forms are read. The template decides which is written, since tokenizers of models that write lists have `[ARGS]`, too."""
CALLING = (HERMES, MISTRAL_NAMED, MISTRAL, LLAMA)
"""The families, in the order in which they are tried."""
THINKING = (ThoughtForm("<think>", "</think>"), ThoughtForm("[THINK]", "[/THINK]"))
"""The marks around reasoning, at the start of a reply."""
Template = dict[str, Any]


def response_format(template: Template, special_tokens: Collection[str]) -> ReplyFormat:
    """Return the format that a response template describes. Raises ValueError if the template is invalid.

    The format's markers are the special tokens that open and close its regions.
    """
    from transformers.utils.chat_parsing.response_templates import (  # noqa: PLC0415 - it imports torch if installed
        load_response_template,
    )

    loaded = load_response_template(template)
    opened = [field for field in template["fields"].values() if "open" in field or "open_pattern" in field]
    delimiters = [{key: field.get(key) for key in _DELIMITERS} for field in opened]
    named = json.dumps(delimiters, ensure_ascii=False).replace("\\", "")
    outside = Kind.NOTHING if loaded.implicit is None else _KINDS.get(loaded.implicit, Kind.TEXT)
    return ReplyFormat(
        "the tokenizer's response template",
        tuple(
            _region(field, template)
            for field in loaded.fields.values()
            if field.open_re is not None or field.close_re is not None
        ),
        markers=tuple(token for token in special_tokens if token in named),
        outside=Kind.TEXT if outside is Kind.CALLS else outside,
        anchor=loaded.start_anchor_re,
        call_form=_call_form(template),
        thought_form=_thought_form(template["fields"]),
    )


_KINDS = {
    "tool_calls": Kind.CALLS,
    "reasoning_content": Kind.THOUGHT,
    "thinking": Kind.THOUGHT,
    "reasoning": Kind.THOUGHT,
}
_NO_LETTERS = re.compile(r"\\s[*+?]*|\\(?=\W)")
_DELIMITERS = ("open", "open_pattern", "close", "close_pattern")


def _call_form(template: Template) -> CallForm | None:
    """Return the form of calls that the template reads and a grammar can write; None if there is none."""
    field = template["fields"].get("tool_calls", {})
    opening, closing = _literal(field, "open"), _literal(field, "close")
    if not opening or closing is None:
        return None
    form = CallForm(opening, closing)
    return form if _reads(template, form) else None


def _reads(template: Template, form: CallForm) -> bool:
    """Return whether the template reads a call in `form`, with white space wherever the form allows it."""
    inside = f'\n{{"{form.name_key}": "probed", "{form.arguments_key}": {{"probe": 1}}}}\n'
    try:
        read = _calls_in(form.opening + inside + form.closing, (), template)
    except Exception as error:  # noqa: BLE001 - whatever a foreign template raises must not stop the start
        log.warning(
            "calls can't be required of this model, since its template does not read %r: %s", inside, error
        )
        return False
    return [(one.name, json.loads(one.arguments)) for one in read] == [("probed", {"probe": 1})]


def _thought_form(fields: Template) -> ThoughtForm | None:
    """Return the form of thoughts; None if it is unknown, or if the content after them has its own opening."""
    names = (name for name, kind in _KINDS.items() if kind is Kind.THOUGHT and name in fields)
    field: Template = fields.get(next(names, ""), {})
    opening, closing = _literal(field, "open"), _literal(field, "close")
    if not opening or not closing or _literal(fields.get("content", {}), "open") != "":
        return None
    return ThoughtForm(opening, closing)


def _literal(field: Template, side: str) -> str | None:
    """Return the mark of a field's `side` ("open" or "close"), empty without one; None if it can't be derived.

    The first of several marks counts. A pattern yields its literal text without white space, if it matches that.
    """
    if plain := field.get(side):
        return str(plain[0] if isinstance(plain, list) else plain)
    pattern = field.get(f"{side}_pattern", "")
    mark = _NO_LETTERS.sub("", pattern)
    return mark if regex.fullmatch(pattern, mark) else None


def _region(field: ResponseTemplateField, template: Template) -> Region:
    close_grows = field.close_literals is None or field.close_literal_can_extend
    if field.open_re is None:  # it has one or the other
        return Region(Kind.NOTHING, Delimiter(field.close_re, grows=close_grows))
    kind = _KINDS.get(field.name, Kind.TEXT)
    return Region(
        kind,
        _padded(field.open_re, grows=field.open_literals is None or field.open_literal_can_extend),
        None if field.close_re is None else _padded(field.close_re, grows=close_grows),
        read=(lambda found, tools: _calls_in(found.raw, tools, template)) if kind is Kind.CALLS else None,
        ends_with_reply=field.content == "json",
    )


def _padded(pattern: Pattern, *, grows: bool) -> Delimiter:
    return Delimiter(regex.compile(f"{_BLANKS}(?:{pattern.pattern})", pattern.flags), grows=grows)


def _calls_in(raw: str, tools: Sequence[Tool], template: Template) -> tuple[Call, ...]:
    """Read the calls in a region. Raises ValueError."""
    from transformers.utils.chat_parsing import parse_response  # noqa: PLC0415 - as above

    shown: list[Any] = [
        {"type": "function", "function": {"name": tool.name, "parameters": json.loads(tool.parameters)}}
        for tool in tools
    ]
    try:
        message = parse_response(raw, template, prefix="", tools=shown)
        return tuple(map(_call, _flat(message.get("tool_calls"))))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no call: {error}") from error


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield value


def _call(parsed: Any) -> Call:
    function = parsed["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return call(str(function["name"]), text)
