"""Cuts a reply's pieces, and merges neighbours of a kind. Pure."""

from __future__ import annotations

from typing import TypeVar, assert_never

import msgspec

from sessions.events import Delta, Done, Reasoning, Text, ToolCall


class KeptLength(msgspec.Struct, frozen=True):
    """The kept part of a reply whose end is decided: lengths of text and reasoning, and its calls."""

    chars: int
    reasoning: int = 0

    def of(self, event: Delta | Reasoning | ToolCall) -> Delta | Reasoning | ToolCall | None:
        """Return what is kept of a piece; None: nothing."""
        match event:
            case ToolCall():
                return event if event.off <= self.chars else None
            case Delta():
                return _cut(event, self.chars)
            case Reasoning():
                return _cut(event, self.reasoning)
            case _:
                assert_never(event)


def kept_length(done: Done) -> KeptLength:
    """Return the kept part of an ended reply."""
    return KeptLength(done.chars, done.reasoning_chars)


def merge_text(first: Text, last: Text, *, text: str, tokens: int) -> Text:
    """Merge neighbours of a kind: the result begins as the first and ends as the last."""
    if isinstance(first, Delta) and isinstance(last, Delta):
        return msgspec.structs.replace(first, seq=last.seq, text=text, tokens=tokens, src_off=last.src_off)
    return msgspec.structs.replace(first, seq=last.seq, text=text, tokens=tokens)


T = TypeVar("T", Delta, Reasoning)


def _cut(text: T, until: int) -> T | None:
    if text.off + len(text.text) <= until:
        return text
    if text.off >= until:
        return None
    return msgspec.structs.replace(text, text=text.text[: until - text.off])
