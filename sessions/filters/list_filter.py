"""The filter that is built in: lists of words and of patterns, one pair for messages and one for replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sessions.filters.filter_hook import Filter, ReplyFilter
from sessions.filters.held_text import HeldText, Scan
from sessions.filters.pattern_scan import PatternScan, PatternSet
from sessions.filters.slices import slices
from sessions.filters.word_list import WordList, WordScan


class Lists:
    """Words and patterns to look for. Raises PatternRefused, and ValueError for a word of nothing."""

    def __init__(self, words: Sequence[str], patterns: Sequence[str], *, max_chars: int) -> None:
        self._scans: list[Callable[[], Scan]] = []
        if words:
            listed = WordList(words)
            self._scans.append(lambda: WordScan(listed))
        if patterns:
            known = PatternSet(patterns, max_chars=max_chars)
            self._scans.append(lambda: PatternScan(known))

    def begin(self) -> HeldText | None:
        """What reads a text; None where nothing is listed."""
        return HeldText([make() for make in self._scans]) if self._scans else None


class ListFilter(Filter):
    """Refuses messages and ends replies in which it finds what is listed."""

    def __init__(self, *, incoming: Lists, outgoing: Lists) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def refuses(self, message: str) -> bool:
        """See `Filter`. Lets others work between slices."""
        reader = self._incoming.begin()
        if reader is None:
            return False
        async for part in slices(message):
            if reader.feed(part).filtered:
                return True
        return reader.finish().filtered

    def reply(self) -> ReplyFilter | None:
        """See `Filter`."""
        return self._outgoing.begin()
