"""What the OpenAPI document is made of: operations, answers, parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from connections.protocol.frames import Name
from specs.schemas import Schema, name_of, named

Part = dict[str, Any]

PLACE = "#/components/schemas/{name}"
BEARER: Part = {"security": [{}, {"bearer": []}]}
"""A token is asked for where the operator configured any."""


def in_query(name: str, words: str, schema: Schema | None = None, *, required: bool = False) -> Part:
    """A parameter of a query; a text, unless a schema says otherwise."""
    shape = schema or {"type": "string"}
    return {"name": name, "in": "query", "required": required, "description": words, "schema": shape}


def in_path(name: str) -> Part:
    """A name in a path."""
    return {"name": name, "in": "path", "required": True, "schema": named(Name)}


def event(words: str) -> Schema:
    """One event of a stream, as those read the schema of `text/event-stream` who read it at all."""
    text = {"type": "string"}
    fields = {"data": text | {"description": words}, "id": text, "event": text, "retry": {"type": "integer"}}
    return {"type": "object", "description": "Each event.", "properties": fields, "required": ["data"]}


def reading(summary: str, answers: Part) -> Part:
    """A path that is read."""
    return {"get": operation(summary, answers)}


def operation(summary: str, answers: Part) -> Part:
    """What is asked, and its answers by status."""
    return {"summary": summary, "responses": answers}


def refusals(body: type[msgspec.Struct], why: dict[int, str]) -> Part:
    """Answers of one type, with the reason of each status."""
    return {str(status): as_json(words, of_type(body)) for status, words in why.items()}


def as_json(words: str, schema: Schema) -> Part:
    """An answer of JSON."""
    return response_of(words, "application/json", schema)


def as_text(words: str, media_type: str) -> Part:
    """An answer of plain text."""
    return response_of(words, media_type, {"type": "string"})


def response_of(words: str, media_type: str, schema: Schema) -> Part:
    """An answer of a media type."""
    return {"description": words, "content": {media_type: {"schema": schema}}}


def of_type(struct: type[msgspec.Struct]) -> Schema:
    """The place of a type's schema."""
    return {"$ref": PLACE.format(name=name_of(struct))}
