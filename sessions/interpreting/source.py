"""The source of an interpretation: it grows, and never changes. Pure."""

from __future__ import annotations

import msgspec

from sessions.errors import Conflict, ContentTooLong

MAX_SOURCE_CHARS = 32_000
"""Of one interpretation, each growth of which is written with all that was said before."""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """More of a source: `text` stands behind `off` characters. `turn_id`: of the interpretation; None: the one that runs."""

    off: int
    text: str
    final: bool = False
    turn_id: str | None = None


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a growth: how much of the source there is now. `already`: all of it was known before."""

    turn_id: str
    chars: int
    final: bool
    already: bool


class Source:
    """What was said so far. Offsets and lengths count code points. `is_final`: it grows no more."""

    __slots__ = ("_max_chars", "is_final", "text")

    def __init__(self, text: str = "", *, is_final: bool = False, max_chars: int = MAX_SOURCE_CHARS) -> None:
        self.text = text
        self.is_final = is_final
        self._max_chars = max_chars

    def news(self, growth: Growth) -> str | None:
        """Return what a growth adds behind what is known; None where all of it was known before. Takes nothing.

        Raises Conflict where it leaves a hole, says something else than before, or ends sooner, and ContentTooLong.
        """
        off, text, final = growth.off, growth.text, growth.final
        here, end = len(self.text), off + len(text)
        if off > here:
            raise Conflict(
                f"The source has {here} characters so far; `off` is {off}, and what is between is missing."
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
            raise Conflict("The source was said to be final; nothing comes behind that.")
        new = text[here - off :]
        return new if new or (final and not self.is_final) else None

    def grow(self, new: str, *, final: bool) -> None:
        """Take what `news` gave."""
        self.text += new
        self.is_final = self.is_final or final
