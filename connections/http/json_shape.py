"""Counts a JSON text's values, and their depth, before any object is made. Pure.

A short text can hold a million empty objects, each with fifty times its length in memory.
"""

from __future__ import annotations

import re

from sessions.errors import Refused

SMALL_BYTES = 16 * 1024
"""Shorter texts are not checked: they can hold little."""
MAX_CONTAINERS = 10_000
"""Most objects and lists: a chat of 2,000 messages with parts has fewer."""
MAX_VALUES = 50_000
MAX_DEPTH = 64

# Without escapes, which are removed before. Possessive, and a string without an end goes to the end of the text: no
# byte is read twice.
_STRING = re.compile(rb'"[^"]*+(?:"|\Z)')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_QUOTES = 4 * MAX_VALUES
"""Most unescaped quotes: each key and each string has two."""
_TOO_MANY = "The request has too many messages, parts or fields."


class TooManyValues(Refused):
    """The JSON text has too many values, or is nested too deeply."""

    code = "invalid_value"


def check_shape(text: bytes) -> None:
    """Raise TooManyValues. Whether the text is valid JSON is the decoder's business."""
    if len(text) <= SMALL_BYTES:
        return
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > MAX_QUOTES:
        raise TooManyValues(_TOO_MANY)
    frame = _STRING.sub(b"", text)
    if frame.count(b"[") + frame.count(b"{") > MAX_CONTAINERS or frame.count(b",") > MAX_VALUES:
        raise TooManyValues(_TOO_MANY)
    if _depth(frame.translate(None, _NO_BRACKETS)) > MAX_DEPTH:
        raise TooManyValues("The request is nested too deeply.")


def _depth(brackets: bytes) -> int:
    """Return the depth of brackets of any kind; there are few of them."""
    deepest = now = 0
    for one in brackets:
        now += 1 if one in b"[{" else -1
        deepest = max(deepest, now)
    return deepest
