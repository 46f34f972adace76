"""Counts a JSON text's values, and their depth, before any object is made. Pure.

A short text can hold a million empty objects, each with fifty times its length in memory.
"""

from __future__ import annotations

from sessions.errors import Refused

SMALL_BYTES = 16 * 1024
"""Shorter texts are not checked: they can hold little."""
MAX_CONTAINERS = 10_000
"""Most objects and lists: a chat of 2,000 messages with parts has fewer."""
MAX_VALUES = 50_000
MAX_DEPTH = 64

_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
MAX_QUOTES = 4 * MAX_VALUES
"""Most unescaped quotes: each key and each string has two."""
_TOO_MANY = "The request has too many messages, parts or fields."


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
