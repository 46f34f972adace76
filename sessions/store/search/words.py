"""What somebody looks for, and where a text has it. Pure."""

from __future__ import annotations

import re

import msgspec

MAX_WORDS = 16
"""Of a query; the words behind them are not looked for."""
EXCERPT_CHARS = 160
"""About as much of a message as two lines of a list show."""
BEFORE_CHARS = 40
"""Of these, so many stand before what was found."""


class Excerpt(msgspec.Struct, frozen=True):
    """A part of a text. `at`, `chars`: where in it what was found stands, in code points."""

    snippet: str
    at: int
    chars: int


class Words:
    """The words of a query. A text has them where it has each, in any order and in any case, within longer words too."""

    def __init__(self, query: str) -> None:
        """Take a query that is not blank."""
        words = list(dict.fromkeys(query.split()))[:MAX_WORDS]
        self._folded = [word.casefold() for word in words]
        # The longest one says most; it is what an excerpt is made around.
        self._first = re.compile(re.escape(max(words, key=len)), re.IGNORECASE)

    def are_in(self, text: str) -> bool:
        """Tell whether a text has them all."""
        folded = text.casefold()
        return all(word in folded for word in self._folded)

    def excerpt(self, text: str) -> Excerpt:
        """Return the part of a text around what was found, white space as one blank each; its beginning where that is not."""
        found = self._first.search(text)  # where the cases of a letter differ in length there may be none
        start, end = (found.start(), found.end()) if found else (0, 0)
        before = " ".join(text[max(0, start - 2 * BEFORE_CHARS) : start].split())
        if len(before) > BEFORE_CHARS:  # begin with a whole word, where words are short
            before = before[-BEFORE_CHARS:].partition(" ")[2] or before[-BEFORE_CHARS:]
        match = " ".join(text[start:end].split())
        behind = " ".join(text[end : end + 2 * EXCERPT_CHARS].split())
        if before and text[start - 1].isspace():
            before += " "
        if behind and text[end : end + 1].isspace():
            behind = f" {behind}"
        return Excerpt((before + match + behind)[:EXCERPT_CHARS], len(before), len(match))
