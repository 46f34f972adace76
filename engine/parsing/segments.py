"""A reply's text in segments, each with the pieces that it becomes. Joined they are the reply as it was written.

White space around a delimiter belongs to it, so white space at the end of a text waits until it is known what follows.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.parsing.formats import CallRegion, Kind
from engine.text.pieces import Call, Piece, Thought

MOST_BLANKS = 16
"""The most characters of white space before a delimiter that belong to it. Earlier ones are text."""


class Segment(NamedTuple):
    """A part of a reply: `raw`, as it was written, and the pieces that it becomes.

    `raw[begin:end]` is the content, without delimiters of the format.
    """

    raw: str
    pieces: tuple[Piece, ...]
    begin: int
    end: int


class Segments:
    """Collects segments in the order of the reply.

    `at_start`: there was no text and no call yet. `behind_call`: only white space came since a call.
    """

    def __init__(self) -> None:
        self.at_start = True
        self.behind_call = False
        self.trims = False
        """Whether white space that comes next belongs to the delimiter before it."""
        self._made: list[Segment] = []
        self._kind = Kind.TEXT
        self._text = ""
        self._blanks = ""

    def take(self) -> list[Segment]:
        """Return the segments since the last call."""
        self._close()
        made, self._made = self._made, []
        return made

    def add_text(self, text: str, kind: Kind, *, waits: bool) -> None:
        """Add text of a kind. `waits`: white space at its end may belong to a delimiter that follows."""
        if self.trims:
            rest = text.lstrip()
            self._add(text[: len(text) - len(rest)], ())
            text = rest
        if not text:
            return
        self.trims = False
        text, self._blanks = self._blanks + text, ""
        if waits:
            cut = max(len(text.rstrip()), len(text) - MOST_BLANKS)
            text, self._blanks = text[:cut], text[cut:]
        self._append(text, kind)

    def delimit(self, raw: str) -> None:
        """Add a delimiter."""
        self._close()
        self._add(self._take_blanks() + raw, ())
        self.trims = True

    def skip(self, raw: str, kind: Kind) -> None:
        """Add text that is not shown, amid text of a kind."""
        self.flush(kind)
        self._close()
        self._made.append(Segment(raw, (), 0, len(raw)))

    def call(self, found: CallRegion, calls: tuple[Call, ...]) -> None:
        """Add a region of calls."""
        self._close()
        blanks = self._take_blanks()
        shift = len(blanks)
        self._made.append(Segment(blanks + found.raw, calls, shift + found.begin, shift + found.end))
        self.trims = self.behind_call = True
        self.at_start = False

    def flush(self, kind: Kind) -> None:
        """Add white space that waited as text."""
        self._append(self._take_blanks(), kind)

    def _take_blanks(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks

    def _append(self, text: str, kind: Kind) -> None:
        if not text:
            return
        if kind is not self._kind:
            self._close()
            self._kind = kind
        self._text += text
        if kind is Kind.TEXT:
            self.at_start = self.behind_call = False

    def _close(self) -> None:
        text, self._text = self._text, ""
        if not text:
            return
        of_kind: dict[Kind, tuple[Piece, ...]] = {Kind.TEXT: (text,), Kind.THOUGHT: (Thought(text),)}
        self._made.append(Segment(text, of_kind.get(self._kind, ()), 0, len(text)))

    def _add(self, raw: str, pieces: tuple[Piece, ...]) -> None:
        """Add a part of a delimiter."""
        if raw:
            self._close()
            self._made.append(Segment(raw, pieces, 0, 0))
