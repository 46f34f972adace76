"""Decides which regions may open next in a reply, by what came before."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from engine.parsing.delimiters import ActiveDelimiter
from engine.parsing.formats import Delimiter, Kind, Region, Where

MOST_CALLS = 128
"""The most calls of a reply. Whatever looks like a call behind them is text."""

MOST_BROKEN = 128
"""The most regions that look like calls and are none. Behind so many no more calls are looked for."""


class Openings:
    """Counts regions: reasoning at the start may come once, and calls are bounded."""

    def __init__(self, regions: Sequence[Region], hidden: Sequence[str]) -> None:
        """Take the regions of a format. `hidden`: tokens that are not shown even if they delimit nothing."""
        self._regions = tuple(regions)
        self.hidden = _hidden(hidden)
        self._calls = self._broken = 0
        self._has_thought = False
        self._known: tuple[bool, bool] | None = None
        self._watched: tuple[ActiveDelimiter, ...] = ()

    def watched(self, *, at_start: bool, behind_call: bool) -> tuple[ActiveDelimiter, ...]:
        """Return the delimiters that count now, outside of all regions."""
        if self._known != (at_start, behind_call):
            self._known = (at_start, behind_call)
            opening = [
                ActiveDelimiter(region.opening, region, anchored=region.where is not Where.ANYWHERE)
                for region in self._regions
                if self._may_open(region, at_start=at_start, behind_call=behind_call)
            ]
            self._watched = (*opening, *self.hidden)
        return self._watched

    def hidden_token(self, text: str) -> str:
        """Return the hidden token that a text begins with, if there is one."""
        found = (one.delimiter.pattern.match(text) for one in self.hidden)
        return next((match.group() for match in found if match is not None), "")

    def has_room_for(self, calls: int) -> bool:
        """Return whether a reply may have `calls` more calls."""
        return self._calls + calls <= MOST_CALLS

    def note_calls(self, calls: int) -> None:
        """Count `calls` more calls."""
        self._calls += calls
        self._known = None

    def note_broken(self) -> None:
        """Count a region that looked like a call and is none."""
        self._broken += 1
        self._known = None

    def note_thought(self) -> None:
        """Note that reasoning began."""
        self._has_thought = True
        self._known = None

    def _may_open(self, region: Region, *, at_start: bool, behind_call: bool) -> bool:
        if region.kind is Kind.CALLS and not (self._calls < MOST_CALLS and self._broken < MOST_BROKEN):
            return False
        if region.where is Where.START:
            return at_start and not (region.kind is Kind.THOUGHT and self._has_thought)
        return region.where is Where.ANYWHERE or behind_call


def _hidden(tokens: Sequence[str]) -> tuple[ActiveDelimiter, ...]:
    """Return a delimiter that matches any of some tokens, the longest first."""
    if not tokens:
        return ()
    longest_first = sorted(tokens, key=len, reverse=True)
    return (ActiveDelimiter(Delimiter(regex.compile("|".join(map(regex.escape, longest_first))))),)
