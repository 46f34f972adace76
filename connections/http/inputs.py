"""Checks what clients send before it is read: the number of a JSON text's values, and ids. Pure.

A short text can hold a million empty objects, each with fifty times its length in memory. So values and their depth are
counted before any object is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from connections.protocol.errors import BadParams, validation_problem
from connections.protocol.frames import Name
from sessions.errors import Refused
from sessions.limits.bounds import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, SMALL_BYTES

_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_QUOTES = 4 * MAX_VALUES
"""Most unescaped quotes: each key and each string has two."""
_TOO_MANY = "The request has too many messages, parts or fields."
_DERIVED_CLIENT_ID = re.compile(r"/(openai|ai-sdk)(/[A-Za-z0-9._:-]{1,128}){0,2}")
"""Client ids that endpoints derive from a key, a token or a conversation, if the request names none."""


class TooManyValues(Refused):
    """The JSON text has too many values, or is nested too deeply."""

    code = "invalid_value"


def check_json_limits(text: bytes) -> None:
    """Raise TooManyValues. Whether the text is valid JSON is the decoder's business."""
    if len(text) <= SMALL_BYTES or _is_plain(text):
        return
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > MAX_QUOTES:
        raise TooManyValues(_TOO_MANY)
    # What is in no string. One without an end goes to the end of the text.
    frame = b"".join(text.split(b'"')[::2])
    if frame.count(b"[") + frame.count(b"{") > MAX_CONTAINERS or frame.count(b",") > MAX_VALUES:
        raise TooManyValues(_TOO_MANY)
    # What closes more than was opened is no JSON, which the decoder says.
    if _is_deep(frame.translate(_ALIKE, _NO_BRACKETS)[: 2 * MAX_CONTAINERS]):
        raise TooManyValues("The request is nested too deeply.")


def _is_plain(text: bytes) -> bool:
    """Return whether the text has too few brackets and commas for a refusal, even if none of them was in a string."""
    return text.count(b"[") + text.count(b"{") <= MAX_DEPTH and text.count(b",") <= MAX_VALUES


def _is_deep(brackets: bytes) -> bool:
    """Return whether brackets of one kind are nested too deeply: each round removes the innermost ones."""
    for _ in range(MAX_DEPTH):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == before:
            break
    return b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH


def parse_client_id(value: str) -> str:
    """Return the client id that a request names, its own or one that an endpoint derived. Raises BadParams."""
    return value if _DERIVED_CLIENT_ID.fullmatch(value) else parse_id("client_id", value)


def parse_id(field: str, value: str) -> str:
    """Return a valid id. Raises BadParams."""
    try:
        return msgspec.convert(value, Name)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field=field) from None


def optional_id(query: Mapping[str, str], field: str) -> str | None:
    """Return a valid id from a query; None if it is left out. Raises BadParams."""
    return None if (value := query.get(field)) is None else parse_id(field, value)
