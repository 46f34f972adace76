"""Text that came and is not translated yet: in order, bounded, and parted into interpretations of bounded length. Pure."""

from __future__ import annotations

import msgspec

from connections.translations.wishes import Wish
from sessions.errors import Overloaded
from sessions.interpreting.scripts import CLOSERS, ENDS_AT_ONCE, SENTENCE_ENDS
from sessions.interpreting.source import MAX_SOURCE_CHARS

MAX_WAITING_CHARS = 32_000
"""More is refused until some of it was taken."""
FULL_CHARS = 24_000
"""An interpretation that has so much ends with its sentence, and the next one begins."""


class Part(msgspec.Struct, frozen=True):
    """What goes into one interpretation, all of it under one wish. `ends`: nothing goes behind it there."""

    text: str
    wish: Wish
    ends: bool = False


class Waiting:
    """What waits. `ref`: of the event that brought the newest of it."""

    __slots__ = ("_parts", "ref")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.ref: str | None = None

    @property
    def chars(self) -> int:
        """How much waits."""
        return sum(len(part.text) for part in self._parts)

    def add(self, text: str, wish: Wish, *, ref: str | None = None) -> None:
        """Takes more. Raises Overloaded."""
        if self.chars + len(text) > MAX_WAITING_CHARS:
            raise Overloaded(f"{self.chars} characters wait to be translated; append more in a moment.")
        self.ref = ref
        last = self._parts[-1] if self._parts else None
        if last is not None and last.wish == wish:
            self._parts[-1] = Part(last.text + text, wish)
        else:
            self._parts.append(Part(text, wish))

    def head(self) -> Part | None:
        """What is translated next; None where nothing waits."""
        return self._parts[0] if self._parts else None

    def take(self, chars: int) -> Part:
        """Takes out what goes into an interpretation that has so much already."""
        first = self._parts.pop(0)
        end, ends = fitting(first.text, chars)
        if rest := first.text[end:]:
            self._parts.insert(0, Part(rest, first.wish))
        return Part(first.text[:end], first.wish, ends)

    def put_back(self, part: Part) -> None:
        """What was taken out comes first again."""
        if part.text:
            self._parts.insert(0, part)

    def drop(self) -> None:
        """What waits is translated no more."""
        self._parts.clear()


def fitting(text: str, chars: int) -> tuple[int, bool]:
    """Return how much of a text goes into a source of so many characters, and whether that ends the source."""
    room = MAX_SOURCE_CHARS - chars
    if chars + len(text) <= FULL_CHARS:
        return len(text), False
    earliest = max(0, FULL_CHARS - chars)
    if (end := _sentence_end(text, earliest, room)) is not None:
        return end, True
    if len(text) <= room:
        return len(text), False
    blanks = (place + 1 for place in range(room - 1, -1, -1) if text[place].isspace())
    return next(blanks, room), True


def _sentence_end(text: str, earliest: int, room: int) -> int | None:
    """Where the first sentence ends that ends there or behind; what closes it is there, too."""
    for place in range(earliest, min(len(text), room)):
        if text[place] == "\n":
            return place + 1
        if text[place] in SENTENCE_ENDS:
            behind = place + 1
            while behind < len(text) and (text[behind] in SENTENCE_ENDS or text[behind] in CLOSERS):
                behind += 1
            is_closed = behind < len(text) and text[behind].isspace()
            if behind <= room and (is_closed or text[place] in ENDS_AT_ONCE):
                return behind
    return None
