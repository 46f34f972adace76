"""JSON Schemas in requests, as texts for the layers below. Pure."""

from __future__ import annotations

import msgspec

from connections.openai.problems import Problem, invalid
from connections.protocol.errors import field_message

MAX_SCHEMA_BYTES = 256 * 1024
"""Bytes of one schema. A model can follow less, and its engine says so."""
_encode = msgspec.json.Encoder().encode


def schema_text(raw: msgspec.Raw, where: str, *, as_text: bool = False) -> str | None:
    """Return the schema as one line of JSON, with its fields in order; None if there is none.

    `as_text`: it may also be a string that contains it. Raises Problem.
    """
    schema = _decoded(bytes(raw), where)
    if as_text and isinstance(schema, str):
        schema = _decoded(schema.encode(), where)
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise invalid(where, field_message(where, "must be a JSON Schema of an object."))
    return _encode(schema).decode()


def json_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _decoded(text: bytes, where: str) -> object:
    if len(text) > MAX_SCHEMA_BYTES:
        raise invalid(where, field_message(where, f"may have at most {MAX_SCHEMA_BYTES} bytes."))
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        raise _no_json(where) from None
    except RecursionError:
        raise invalid(where, field_message(where, "is nested too deeply.")) from None


def _no_json(where: str) -> Problem:
    return invalid(where, field_message(where, "must be JSON."))
