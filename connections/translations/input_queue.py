"""Text that waits to be translated: in order, bounded, and divided into interpretations of bounded length. Pure."""

from __future__ import annotations

from collections import deque

import msgspec

from connections.translations.options import TranslationOptions
from sessions.errors import Overloaded
from sessions.interpreting.interpretation import MAX_SOURCE_CHARS
from sessions.interpreting.languages import CLOSERS, ENDS_AT_ONCE, SENTENCE_ENDS

MAX_QUEUED_CHARS = 32_000
"""Characters that may wait; more are refused until some were taken."""
MAX_QUEUED_PARTS = 32
"""Parts of different wishes: each is an interpretation of its own, however short."""
FULL_CHARS = 24_000
"""An interpretation of this length ends with its sentence, and the next one begins."""


class QueuedText(msgspec.Struct, frozen=True):
    """Text for one interpretation, with one set of options. `ends`: no text follows it there.

    `ref`: of the event with its newest text.
    """

    text: str
    options: TranslationOptions
    ends: bool = False
    ref: str | None = None


class InputQueue:
    """The waiting parts. `chars`: their length. Only the last one may be empty: it has new options."""

    __slots__ = ("_parts", "chars")

    def __init__(self) -> None:
        self._parts: deque[QueuedText] = deque()
        self.chars = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, text: str, options: TranslationOptions, *, ref: str | None = None) -> None:
        """Add text. Raises Overloaded."""
        if self.chars + len(text) > MAX_QUEUED_CHARS:
            raise Overloaded(f"{self.chars} characters wait to be translated; append more in a moment.")
        if text and self._begins(options) and self._filled >= MAX_QUEUED_PARTS:
            raise Overloaded(
                f"{self._filled} pieces in changing languages wait to be translated; append more in a moment."
            )
        self.chars += len(text)
        if self._parts and not self._parts[-1].text:  # the only part without text is the last one
            self._parts.pop()
        last = (
            self._parts.pop()
            if self._parts and self._parts[-1].options == options
            else QueuedText("", options)
        )
        self._parts.append(QueuedText(last.text + text, options, ref=ref or last.ref))

    @property
    def _filled(self) -> int:
        return len(self._parts) - (bool(self._parts) and not self._parts[-1].text)

    def _begins(self, options: TranslationOptions) -> bool:
        """Whether text under this wish is a part of its own."""
        last = next((part for part in reversed(self._parts) if part.text), None)
        return last is None or last.options != options

    def head(self) -> QueuedText | None:
        """Return what is translated next; None if nothing waits."""
        return self._parts[0] if self._parts else None

    def take(self, chars: int) -> QueuedText:
        """Remove and return what fits an interpretation that has so many characters."""
        first = self._parts.popleft()
        end, ends = fitting(first.text, chars)
        if rest := first.text[end:]:
            self._parts.appendleft(QueuedText(rest, first.options, ref=first.ref))
        self.chars -= end
        return QueuedText(first.text[:end], first.options, ends, first.ref)

    def put_back(self, part: QueuedText) -> None:
        """Put a part back to the front."""
        if part.text:
            self._parts.appendleft(part)
            self.chars += len(part.text)

    def drop(self) -> QueuedText:
        """Remove and return the next part, which is not translated."""
        part = self._parts.popleft()
        self.chars -= len(part.text)
        return part


def fitting(text: str, chars: int) -> tuple[int, bool]:
    """Return how much of a text fits into a source of so many characters, and whether that ends the source."""
    limit = MAX_SOURCE_CHARS - chars
    if chars + len(text) <= FULL_CHARS:
        return len(text), False
    earliest = max(0, FULL_CHARS - chars)
    if (end := _sentence_end(text, earliest, limit)) is not None:
        return end, True
    if len(text) <= limit:
        return len(text), False
    blanks = (place + 1 for place in range(limit - 1, -1, -1) if text[place].isspace())
    return next(blanks, limit), True


def _sentence_end(text: str, earliest: int, limit: int) -> int | None:
    """Return the end of the first sentence that ends there or later, with its closing characters."""
    for place in range(earliest, min(len(text), limit)):
        if text[place] == "\n":
            return place + 1
        if text[place] in SENTENCE_ENDS:
            after = place + 1
            while after < len(text) and (text[after] in SENTENCE_ENDS or text[after] in CLOSERS):
                after += 1
            is_closed = after < len(text) and text[after].isspace()
            if after <= limit and (is_closed or text[place] in ENDS_AT_ONCE):
                return after
    return None
