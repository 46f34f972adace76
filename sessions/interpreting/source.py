"""The source of an interpretation. It grows, but what it has never changes. Pure."""

from __future__ import annotations

import msgspec

from sessions.errors import Conflict, ContentTooLong

MAX_SOURCE_CHARS = 32_000
"""Characters of one interpretation. Each growth writes the whole source."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """More of a source: `text` follows `off` characters. `turn_id`: of the interpretation; None: the running one."""

    off: int
    text: str
    final: bool = False
    turn_id: str | None = None


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a growth: the length of the source now. `already`: all of it was known before."""

    turn_id: str
    chars: int
    final: bool
    already: bool


class Source:
    """The source so far. Offsets and lengths count code points. `is_final`: it does not grow any more."""

    __slots__ = ("_max_chars", "is_final", "text")

    def __init__(self, text: str = "", *, is_final: bool = False, max_chars: int = MAX_SOURCE_CHARS) -> None:
        self.text = text
        self.is_final = is_final
        self._max_chars = max_chars

    def news(self, growth: Growth) -> str | None:
        """Return what a growth adds; None if all of it was known before. Changes nothing.

        Raises Conflict if it leaves a gap, contradicts the source, or ends it too early, and ContentTooLong.
        """
        off, text, final = growth.off, growth.text, growth.final
        here, end = len(self.text), off + len(text)
        if off > here:
            raise Conflict(
                f"The source has {here} characters so far; `off` is {off}, so text is missing in between."
            )
        if self.text[off:end] != text[: here - off]:
            raise Conflict("The source was told otherwise before; what was said is not revised.")
        if final and end < here:
            raise Conflict(
                f"The source has {here} characters by now, and can't end at {end}: it does not shrink."
            )
        if end > self._max_chars:
            raise ContentTooLong(
                f"The source would have {end} characters; {self._max_chars} are allowed. Begin another interpretation."
            )
        if self.is_final and end > here:
            raise Conflict("The source is final; nothing can follow.")
        new = text[here - off :]
        return new if new or (final and not self.is_final) else None

    def grow(self, new: str, *, final: bool) -> None:
        """Add what `news` returned."""
        self.text += new
        self.is_final = self.is_final or final
