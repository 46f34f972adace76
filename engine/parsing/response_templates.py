"""Turns a tokenizer's response template into a format. Our parser finds the delimiters; transformers reads the calls.

So a reply is parsed while it is written, within bounds, and a malformed call breaks nothing. The template's fields
`content`, `tool_calls` and those for reasoning are known; other fields are text.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import regex
from transformers.utils.chat_parsing import parse_response
from transformers.utils.chat_parsing.response_templates import ResponseTemplateField, load_response_template

from engine.grammar.compiler import CallForm, ThoughtForm
from engine.parsing.formats import CallRegion, Delimiter, Kind, Read, Region, ReplyFormat
from engine.reply_spec import Tool
from engine.text.reply_text import Call

T = TypeVar("T")

LONGEST_NAME = 256
"""The most characters of a tool's name."""

_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, object])
_NAME = msgspec.json.Decoder(str)

_KINDS = {
    "tool_calls": Kind.CALLS,
    "reasoning_content": Kind.THOUGHT,
    "thinking": Kind.THOUGHT,
    "reasoning": Kind.THOUGHT,
}
_NO_LETTERS = re.compile(r"\\s[*+?]*|\\(?=\W)")
_DELIMITERS = ("open", "open_pattern", "close", "close_pattern")
Template = dict[str, Any]

log = logging.getLogger(__name__)


def json_calls(*keys: str) -> Read:
    """Return a function that reads calls in JSON: an object, or a list of them. `keys`: the names that arguments may have.

    If the opening of the region names the call, the object is its arguments.
    """
    return partial(_read_json, keys=keys)


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object (RFC 8259)."""
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _read_json(found: CallRegion, _tools: Sequence[Tool], keys: Sequence[str]) -> tuple[Call, ...]:
    inside = found.inside.strip()
    if found.name is not None:
        return (call(found.name, inside),)
    if not inside.startswith("["):
        return (_call_of(inside, keys),)
    calls = tuple(_call_of(bytes(each).decode(), keys) for each in _decoded(_RAW_LIST, inside))
    if not calls:
        raise ValueError("the list of calls is empty")
    return calls


def call(name: str, arguments: str) -> Call:
    """Return a call. Raises ValueError if its name is empty or too long, or its arguments are no JSON object."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a call needs a name of at most {LONGEST_NAME} characters")
    if not is_object(arguments):
        raise ValueError("the arguments are no JSON object")
    return Call(name, arguments)


def _call_of(text: str, keys: Sequence[str]) -> Call:
    members = _decoded(_RAW_OBJECT, text)
    arguments = next((members[key] for key in keys if key in members), None)
    if arguments is None or "name" not in members:
        raise ValueError("a call needs a name and arguments")
    return call(_decoded(_NAME, members["name"]), bytes(arguments).decode())


def _decoded(decoder: msgspec.json.Decoder[T], text: str | msgspec.Raw) -> T:
    """Decode. Raises ValueError."""
    try:
        return decoder.decode(text)
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error


def response_format(template: Template, special_tokens: Collection[str]) -> ReplyFormat:
    """Return the format that a response template describes. Raises ValueError if the template is invalid.

    Its markers are the special tokens that open and close its regions.
    """
    loaded = load_response_template(template)
    named = _delimiters(template["fields"])
    return ReplyFormat(
        "the tokenizer's response template",
        tuple(_region(field, template) for field in loaded.fields.values() if _delimits(field)),
        markers=tuple(token for token in special_tokens if token in named),
        outside=Kind.NOTHING if loaded.implicit is None else _outside(loaded.implicit),
        anchor=loaded.start_anchor_re,
        call_form=_call_form(template),
        thought_form=_thought_form(template["fields"]),
    )


def _call_form(template: Template) -> CallForm | None:
    """Return the form of calls that the template reads and a grammar can write; None if there is none."""
    field = template["fields"].get("tool_calls", {})
    opening, closing = _literal(field, "open"), _literal(field, "close")
    if not opening or closing is None:
        return None
    form = CallForm(opening, closing)
    return form if _reads(template, form) else None


def _reads(template: Template, form: CallForm) -> bool:
    """Try whether the template reads a call in a form, with white space wherever the form allows it."""
    inside = f'\n{{"{form.name_key}": "probed", "{form.arguments_key}": {{"probe": 1}}}}\n'
    try:
        read = _calls_in(form.opening + inside + form.closing, inside, (), template)
    except Exception as error:  # noqa: BLE001 - whatever a foreign template raises must not stop the start
        log.warning(
            "calls can't be required of this model, since its template does not read %r: %s", inside, error
        )
        return False
    return [(one.name, json.loads(one.arguments)) for one in read] == [("probed", {"probe": 1})]


def _thought_form(fields: Template) -> ThoughtForm | None:
    """Return the form of thoughts; None if the content behind them has an opening of its own, or it is unknown."""
    names = (name for name, kind in _KINDS.items() if kind is Kind.THOUGHT and name in fields)
    field: Template = fields.get(next(names, ""), {})
    opening, closing = _literal(field, "open"), _literal(field, "close")
    if not opening or not closing or _literal(fields.get("content", {}), "open") != "":
        return None
    return ThoughtForm(opening, closing)


def _literal(field: Template, side: str) -> str | None:
    """Return the mark at a side of a field, empty if it has none; None if its spelling can't be told.

    Of several marks it is the first. Of a pattern it is the text without its white space, if that matches.
    """
    if plain := field.get(side):
        return str(plain[0] if isinstance(plain, list) else plain)
    pattern = field.get(f"{side}_pattern", "")
    mark = _NO_LETTERS.sub("", pattern)
    return mark if regex.fullmatch(pattern, mark) else None


def _delimiters(fields: Template) -> str:
    """Return the delimiters of all regions as one text, without the mark that ends the whole message."""
    opened = [field for field in fields.values() if "open" in field or "open_pattern" in field]
    delimiters = [{key: field.get(key) for key in _DELIMITERS} for field in opened]
    return json.dumps(delimiters, ensure_ascii=False).replace("\\", "")


def _delimits(field: ResponseTemplateField) -> bool:
    return field.open_re is not None or field.close_re is not None


def _outside(implicit: str) -> Kind:
    kind = _KINDS.get(implicit, Kind.TEXT)
    return Kind.TEXT if kind is Kind.CALLS else kind


def _region(field: ResponseTemplateField, template: Template) -> Region:
    close = _delimiter(field.close_re, field.close_literals, can_extend=field.close_literal_can_extend)
    opening = _delimiter(field.open_re, field.open_literals, can_extend=field.open_literal_can_extend)
    if opening is None:
        assert close is not None  # noqa: S101 - it has either
        return Region(Kind.NOTHING, close)
    kind = _KINDS.get(field.name, Kind.TEXT)
    return Region(
        kind,
        opening,
        close,
        read=partial(_read, template=template) if kind is Kind.CALLS else None,
        ends_with_reply=field.content == "json",
    )


def _delimiter(pattern: Any, literals: Sequence[str] | None, *, can_extend: bool) -> Delimiter | None:
    return None if pattern is None else Delimiter(pattern, grows=literals is None or can_extend)


def _read(found: CallRegion, tools: Sequence[Tool], template: Template) -> tuple[Call, ...]:
    """Read a region of calls. Raises ValueError."""
    return _calls_in(found.raw, found.inside, tools, template)


def _calls_in(raw: str, inside: str, tools: Sequence[Tool], template: Template) -> tuple[Call, ...]:
    """Read a text of calls. Raises ValueError."""
    shown: list[Any] = [
        {"type": "function", "function": {"name": tool.name, "parameters": json.loads(tool.parameters)}}
        for tool in tools
    ]
    try:
        message = parse_response(raw, template, prefix="", tools=shown)
        return tuple(_call(each, inside) for each in _flat(message.get("tool_calls")))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no call: {error}") from error


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield value


def _call(parsed: Any, inside: str) -> Call:
    function = parsed["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else _as_written(arguments, inside)
    return call(str(function["name"]), text)


def _as_written(arguments: Any, inside: str) -> str:
    """Return arguments as they are written in a region of JSON, or else encoded as JSON."""
    return next(
        (text for text in _objects(inside) if json.loads(text) == arguments),
        json.dumps(arguments, ensure_ascii=False),
    )


def _objects(inside: str) -> Iterator[str]:
    """Yield the objects that may be arguments: the region itself, and the members of each object that it has."""
    text = inside.strip()
    if is_object(text):
        yield text
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        yield from filter(is_object, (bytes(raw).decode() for raw in members.values()))
    elif text.startswith("["):
        yield from _objects_of_list(text)


def _objects_of_list(text: str) -> Iterator[str]:
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return
    for raw in items:
        item = bytes(raw).decode()
        if is_object(item):
            yield from _objects(item)
