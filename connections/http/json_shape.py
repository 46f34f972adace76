"""How many values a JSON text has and how deep they lie, known before any of them is made. Pure.

A short text can hold a million empty objects, each of which takes fifty times its length in memory.
"""

from __future__ import annotations

import re

from sessions.errors import Refused

SMALL_BYTES = 16 * 1024
"""So short a text is not looked at: what it can hold is little."""
MAX_CONTAINERS = 10_000
"""Objects and lists: a chat of 2,000 messages with parts has fewer."""
MAX_VALUES = 50_000
MAX_DEPTH = 64

# Without escapes, which are taken out before. Possessive, and a string without an end goes to the end of the text: no
# byte is looked at twice.
_STRING = re.compile(rb'"[^"]*+(?:"|\Z)')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_QUOTES = 4 * MAX_VALUES
"""That are not escaped: each key and each text has two."""
_TOO_MANY = "The request has too many messages, parts or fields."


class TooManyValues(Refused):
    """The JSON text has more values than one may have, or they are nested deeper."""

    code = "invalid_value"


def check_shape(text: bytes) -> None:
    """Raises TooManyValues. Whether it is JSON at all, its decoder finds out."""
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
    """How deep brackets are nested, of whichever kind they are; there are few of them."""
    deepest = now = 0
    for one in brackets:
        now += 1 if one in b"[{" else -1
        deepest = max(deepest, now)
    return deepest
