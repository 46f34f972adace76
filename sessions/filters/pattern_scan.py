"""Matches patterns against a growing text. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sessions.filters.pattern_program import ROOT, Before, Edge, Program, before

MOST_KNOWN = 16_384


class Transition(msgspec.Struct, frozen=True, gc=False):
    """A character's effect in a state. `complete_before`: a match ended before it; `complete`: one ends with it."""

    complete_before: bool
    complete: bool
    targets: tuple[int, ...]


class PatternSet:
    """Compiled patterns, with the transitions that scans have used so far. Raises UnsupportedPattern as Program does."""

    def __init__(self, patterns: Iterable[str], *, max_chars: int) -> None:
        self._states = Program(patterns, max_chars=max_chars).states
        self._has_guards = [any(edge.guards for edge in edges) for edges in self._states]
        self._known: dict[tuple[int, Before, str], Transition] = {}

    def move(self, state: int, before: Before, char: str) -> Transition:
        """Return what the next character, after `before`, does in a state; an empty one is the end of the text."""
        if not self._has_guards[state]:
            before = Before.OTHER
        return self._known.get((state, before, char)) or self._learn(state, before, char)

    def _learn(self, state: int, before: Before, char: str) -> Transition:
        ways = [edge for edge in self._states[state] if all(holds(before, char) for holds in edge.guards)]
        targets = tuple(dict.fromkeys(edge.target for edge in ways if edge.test and char and edge.test(char)))
        move = Transition(
            complete_before=any(edge.test is None for edge in ways),
            complete=any(_is_match(edge) for target in targets for edge in self._states[target]),
            targets=targets,
        )
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[state, before, char] = move
        return move


def _is_match(edge: Edge) -> bool:
    return edge.test is None and not edge.guards


class PatternScan:
    """A `Scan` for patterns: the current states, each with the beginning of its match, the first match first."""

    __slots__ = ("_before", "_live", "_patterns")

    def __init__(self, patterns: PatternSet) -> None:
        self._patterns = patterns
        self._live: dict[int, int] = {}
        self._before = Before.NOTHING

    @property
    def earliest(self) -> int | None:
        """See `Scan`."""
        return next(iter(self._live.values()), None)

    def step(self, at: int, char: str) -> bool:
        """See `Scan`."""
        following: dict[int, int] = {}
        complete = False
        for state, start in (*self._live.items(), (ROOT, at)):
            move = self._patterns.move(state, self._before, char)
            if move.complete_before:
                return True
            complete = complete or move.complete
            for target in move.targets:
                following.setdefault(target, start)
        self._live = following
        self._before = before(char)
        return complete

    def end(self) -> bool:
        """See `Scan`."""
        return any(self._patterns.move(state, self._before, "").complete_before for state in self._live)
