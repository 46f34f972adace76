"""The built-in filter: lists of words and of patterns, for messages and for replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sessions.filters.chain import slices
from sessions.filters.holdback import HoldbackFilter, Scan
from sessions.filters.interface import Filter, ReplyFilter
from sessions.filters.pattern_scan import PatternScan, PatternSet
from sessions.filters.word_list import WordList, WordScan


class MatchLists:
    """Words and patterns to look for. Raises UnsupportedPattern, and ValueError for an empty word."""

    def __init__(self, words: Sequence[str], patterns: Sequence[str], *, max_chars: int) -> None:
        self._scans: list[Callable[[], Scan]] = []
        if words:
            listed = WordList(words)
            self._scans.append(lambda: WordScan(listed))
        if patterns:
            known = PatternSet(patterns, max_chars=max_chars)
            self._scans.append(lambda: PatternScan(known))

    def begin(self) -> HoldbackFilter | None:
        """Return a reader of one text; None if the lists are empty."""
        return HoldbackFilter([make() for make in self._scans]) if self._scans else None


class ListFilter(Filter):
    """Refuses messages with listed words or patterns, and ends such replies."""

    def __init__(self, *, incoming: MatchLists, outgoing: MatchLists) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def refuses(self, message: str) -> bool:
        """See `Filter`. Long messages let other tasks run."""
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
