"""The words of a query, and their places in a text. Pure."""

from __future__ import annotations

import re

import msgspec

MAX_WORDS = 16
"""Words of a query; further ones are ignored."""
EXCERPT_CHARS = 160
"""Characters of a snippet: about two lines of a list."""
BEFORE_CHARS = 40
"""Of these, characters before the match."""


class Excerpt(msgspec.Struct, frozen=True):
    """A part of a text. `at`, `chars`: the place of the match in it, in code points."""

    snippet: str
    at: int
    chars: int


class QueryWords:
    """The words of a query. A text matches if it has each of them, in any order and case, also within longer words."""

    def __init__(self, query: str) -> None:
        """Take a query that is not blank."""
        words = list(dict.fromkeys(query.split()))[:MAX_WORDS]
        self._folded = [word.casefold() for word in words]
        # the snippet is made around the longest word, which says most
        self._first = re.compile(re.escape(max(words, key=len)), re.IGNORECASE)

    def are_in(self, text: str) -> bool:
        """Return whether a text has them all."""
        folded = text.casefold()
        return all(word in folded for word in self._folded)

    def excerpt(self, text: str) -> Excerpt:
        """Return a snippet of a text around the match, with white space collapsed; its beginning if there is no match."""
        found = self._first.search(text)  # there may be none, since upper and lower case can differ in length
        start, end = (found.start(), found.end()) if found else (0, 0)
        before = " ".join(text[max(0, start - 2 * BEFORE_CHARS) : start].split())
        if len(before) > BEFORE_CHARS:  # begin with a whole word, unless words are long
            before = before[-BEFORE_CHARS:].partition(" ")[2] or before[-BEFORE_CHARS:]
        match = " ".join(text[start:end].split())
        after = " ".join(text[end : end + 2 * EXCERPT_CHARS].split())
        if before and text[start - 1].isspace():
            before += " "
        if after and text[end : end + 1].isspace():
            after = f" {after}"
        return Excerpt((before + match + after)[:EXCERPT_CHARS], len(before), len(match))
