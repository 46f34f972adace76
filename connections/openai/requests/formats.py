"""The format of a reply, by any of the names that OpenAI and vLLM have for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from connections.openai.problems import invalid
from connections.openai.requests.json_schemas import schema_text
from connections.openai.requests.models import BaseRequest, ResponseFormat, StructuredOutputs
from connections.protocol.errors import field_message
from engine.reply_spec import Format, Grammar, JsonObject, JsonSchema, Regex

MAX_PATTERN_CHARS = 4096
MAX_GRAMMAR_CHARS = 65_536
MAX_CHOICES = 256
_REGEX_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_NULL = b"null"
_TOO_MANY = "A reply can have one format: leave `{}` out."

RequestedFormat = tuple[str, Format]
"""A format, and the field that asks for it."""


def format_of(request: BaseRequest) -> RequestedFormat | None:
    """Return the one requested format, and its field; None: text. Raises Problem."""
    found = list(_formats(request))
    if len(found) > 1:
        raise invalid(found[1][0], _TOO_MANY.format(found[1][0]))
    return found[0] if found else None


def _formats(request: BaseRequest) -> Iterator[RequestedFormat]:
    if request.response_format is not None:
        yield from _response_format(request.response_format)
    if request.structured_outputs is not None:
        yield from _structured(request.structured_outputs)
    yield from _vllm_formats(
        "guided_",
        StructuredOutputs(
            json=request.guided_json,
            regex=request.guided_regex,
            choice=request.guided_choice,
            grammar=request.guided_grammar,
        ),
    )


def _response_format(given: ResponseFormat) -> Iterator[RequestedFormat]:
    match given.type:
        case "text":
            return
        case "json_object":
            yield "response_format", JsonObject()
        case "json_schema":
            named = given.json_schema
            where = "response_format.json_schema.schema"
            schema = None if named is None else schema_text(named.schema, where)
            if schema is None:
                raise invalid(where, field_message(where, "is missing."))
            yield "response_format", JsonSchema(schema)
        case _:
            why = "must be text, json_object or json_schema."
            raise invalid("response_format.type", field_message("response_format.type", why))


def _structured(given: StructuredOutputs) -> Iterator[RequestedFormat]:
    where = "structured_outputs.structural_tag"
    if bytes(given.structural_tag) != _NULL:
        why = "This server does not apply `structured_outputs.structural_tag`."
        raise invalid(where, why, code="unsupported_parameter")
    if given.json_object:
        yield "structured_outputs.json_object", JsonObject()
    yield from _vllm_formats("structured_outputs.", given)


def _vllm_formats(prefix: str, given: StructuredOutputs) -> Iterator[RequestedFormat]:
    if (schema := schema_text(given.json, where := f"{prefix}json", as_text=True)) is not None:
        yield where, JsonSchema(schema)
    if given.regex is not None:
        yield (where := f"{prefix}regex"), Regex(_bounded_text(given.regex, where, MAX_PATTERN_CHARS))
    if given.choice is not None:
        yield (where := f"{prefix}choice"), Regex(_choice(given.choice, where))
    if given.grammar is not None:
        yield (where := f"{prefix}grammar"), Grammar(_bounded_text(given.grammar, where, MAX_GRAMMAR_CHARS))


def _bounded_text(text: str, where: str, most: int) -> str:
    if not 0 < len(text) <= most:
        raise invalid(where, field_message(where, f"must have 1 to {most} characters."))
    return text


def _choice(texts: Sequence[str], where: str) -> str:
    """Return a pattern that matches exactly these texts."""
    if not 0 < len(texts) <= MAX_CHOICES or not all(texts):
        raise invalid(where, field_message(where, f"must have 1 to {MAX_CHOICES} texts, none of them empty."))
    pattern = "|".join(_REGEX_SPECIAL.sub(r"\\\g<0>", text) for text in texts)
    return _bounded_text(f"({pattern})", where, MAX_PATTERN_CHARS)


def is_null(raw: msgspec.Raw) -> bool:
    """Return whether a field is null."""
    return bytes(raw) == _NULL
