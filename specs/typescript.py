"""TypeScript types from JSON Schemas: as much of both as the frames need."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_KINDS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_OBJECT = "Record<string, unknown>"
_HEAD = """\
// The frames of the protocol midstream.v1, generated from the server's types: `make specs` writes this file.
"""


def declarations(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """A module that exports a type for every schema."""
    return "\n".join([_HEAD, *(line for name, schema in schemas.items() for line in _declared(name, schema))])


def _declared(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if words := schema.get("description"):
        yield from _comment(words)
    if "properties" not in schema:
        yield f"export type {name} = {type_of(schema)};\n"
        return
    yield f"export interface {name} {{"
    for field, shape in schema["properties"].items():
        yield f"  {field}{'' if field in schema['required'] else '?'}: {type_of(shape)};"
    yield "}\n"


def _comment(words: str) -> Iterator[str]:
    first, *more = words.splitlines()
    if not more:
        yield f"/** {first} */"
        return
    yield "/**"
    yield from (f" * {line}".rstrip() for line in (first, *more))
    yield " */"


def type_of(schema: Mapping[str, Any]) -> str:
    """The type of what a schema describes. Raises ValueError where it describes more than frames have."""
    match schema:
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case {"enum": [*values]}:
            return " | ".join(map(json.dumps, values))
        case {"anyOf": [*kinds]} | {"oneOf": [*kinds]}:
            return " | ".join(dict.fromkeys(map(type_of, kinds)))
        case {"type": "array", "items": item}:
            inner = type_of(item)
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        case {"type": "object"}:
            return _OBJECT
        case {"type": str(kind)} if kind in _KINDS:
            return _KINDS[kind]
    raise ValueError(f"No type for {schema}.")
