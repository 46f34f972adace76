"""Where text may be cut without splitting a user-perceived character (UAX #29's extended grapheme clusters).

Knows text alone: no tokens and no clients.
"""

from __future__ import annotations

import regex

MOST_HELD = 64
"""Code points of an unfinished cluster that are held back at most."""

_UNFINISHED = regex.compile(
    r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\p{Join_Control}\p{Variation_Selector}"
    r"\p{Indic_Syllabic_Category=Virama}\p{Indic_Syllabic_Category=Invisible_Stacker}"
    r"\p{Hangul_Syllable_Type=L}\p{Hangul_Syllable_Type=V}\p{Hangul_Syllable_Type=T}"
    r"\U000E0020-\U000E007F]"
)
_CLUSTER = regex.compile(r"\X")
_LEANS_BACK = regex.compile(r"[\p{Grapheme_Cluster_Break=Extend}\u200d]")
_FIRST_UNFINISHED = "\xa9"


def whole_length(text: str) -> int:
    """Return how many code points of `text`, the unshown part of a reply, may be shown now.

    If the last code point may be continued (an emoji, its modifier or its tag, half a flag, a joiner, a variation selector, a
    virama, a jamo), its cluster waits. A cluster of `MOST_HELD` code points waits no longer.
    """
    if not text or text[-1] < _FIRST_UNFINISHED or not _UNFINISHED.match(text[-1]):
        return len(text)
    start = _cluster_start(text, len(text) - 1)
    return len(text) if len(text) - start >= MOST_HELD else start


def floor_boundary(text: str, offset: int) -> int:
    """Return the largest offset that is at most `offset` and inside no cluster. Looks only at the text near it."""
    if offset <= 0:
        return 0
    if offset >= len(text):
        return len(text)
    return _cluster_start(text, offset)


def _cluster_start(text: str, index: int) -> int:
    """Return where the cluster begins to which the code point at `index` belongs."""
    anchor = index
    while not _surely_starts(text, anchor):
        anchor -= 1
    if anchor == index:
        return index
    *_, last = _CLUSTER.finditer(text[anchor : index + 1])
    return anchor + last.start()


def _surely_starts(text: str, index: int) -> bool:
    """Return whether a cluster starts at `index`, judged by the two code points around it.

    Rules that look further back (emoji joined by U+200D, conjuncts, pairs of regional indicators) are never contradicted: if
    they could apply the answer is no.
    """
    if index == 0:
        return True
    before, after = text[index - 1], text[index]
    if before.isascii() and after.isascii():
        return (before, after) != ("\r", "\n")
    first = _CLUSTER.match(before + after)
    return first is not None and first.end() == 1 and not _LEANS_BACK.match(before)
