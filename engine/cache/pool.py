"""Who holds how much of the memory for keys and values: running replies, and states that are kept for later turns.

Counts tokens; the tensors are the cache's. Pure bookkeeping, in which `free + used + parked == total` always.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from engine.cache.prefix_index import BLOCK, Match, PrefixIndex

EVERYONE = "\x00everyone"
"""The salt of what all may share: the operator's system prompt."""


class _State(NamedTuple):
    salt: str
    tokens: int


class KVPool:
    """Memory for `total` tokens. Kept states give way to running replies, the one that was not used for longest first."""

    def __init__(self, total: int, *, parked: int | None = None) -> None:
        """Take how many tokens there is memory for; of these, kept states take `parked` at most."""
        self.total = total
        self._most_parked = total if parked is None else parked
        self.used = 0
        self.parked = 0
        self._index = PrefixIndex()
        self._states: OrderedDict[int, _State] = OrderedDict()
        self._dropped: list[int] = []
        self._next = 0

    @property
    def free(self) -> int:
        """Tokens that nobody holds."""
        return self.total - self.used - self.parked

    @property
    def states(self) -> int:
        """How many states are kept."""
        return len(self._states)

    def find(self, salt: str, prompt: Sequence[int], *, shared: int = 0) -> Match | None:
        """Return the kept state that most of a prompt can be taken from; its last token is always to be computed.

        A state of this salt, or one that everyone shares of the first `shared` tokens: whoever shares none must not
        learn by guessing what others share.
        """
        known = prompt[:-1]
        found = [self._index.find(salt, known), self._index.find(EVERYONE, known[:shared])]
        best = max((match for match in found if match), key=lambda match: match.tokens, default=None)
        if best is not None:
            self._states.move_to_end(best.key)
        return best

    def goes_along(self, match: Match) -> bool:
        """Whether a match is most of a state that nobody else uses: it need not be kept beside the reply that takes it."""
        state = self._states[match.key]
        return state.salt != EVERYONE and 2 * match.tokens >= state.tokens

    def has_room(self, tokens: int, beside: int | None = None) -> bool:
        """Whether memory can be had, if need be from all states but the one named."""
        kept = 0 if beside is None else self._states[beside].tokens
        return tokens <= self.total - self.used - kept

    def reserve(self, tokens: int, beside: int | None = None) -> bool:
        """Take memory for a running reply; states other than the one named are dropped for it. False: there is none."""
        if not self.has_room(tokens, beside):
            return False
        while tokens > self.free:
            self.drop(next(key for key in self._states if key != beside))
        self.used += tokens
        return True

    def give_back(self, tokens: int) -> None:
        """Return what a running reply held."""
        self.used -= tokens

    def park(self, salt: str, tokens: Sequence[int]) -> int | None:
        """Keep a state of free memory, in place of one that it goes on from; None where it is too short, known or large."""
        if len(tokens) < BLOCK:
            return None
        match = self._index.find(salt, tokens)
        if match is not None and match.tokens == len(tokens):
            return None
        if match is not None and match.tokens == self._states[match.key].tokens:
            self.drop(match.key)
        if len(tokens) > min(self.free, self._most_parked):
            return None
        while len(tokens) > self._most_parked - self.parked:
            self.drop(next(iter(self._states)))
        key, self._next = self._next, self._next + 1
        self._index.add(key, salt, array("q", tokens))
        self._states[key] = _State(salt, len(tokens))
        self.parked += len(tokens)
        return key

    def drop(self, key: int) -> None:
        """Give up a kept state."""
        self._index.remove(key)
        self.parked -= self._states.pop(key).tokens
        self._dropped.append(key)

    def drop_all(self) -> int:
        """Give up every kept state; returns how many tokens they had."""
        freed = self.parked
        for key in tuple(self._states):
            self.drop(key)
        return freed

    def take_dropped(self) -> list[int]:
        """Return the states given up since the last call, whose tensors can go."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def check_idle(self) -> None:
        """Raise RuntimeError where memory is held though nothing runs: a leak, which must not go unseen."""
        kept = sum(state.tokens for state in self._states.values())
        if self.used or self.parked != kept or self.states != len(self._index):
            raise RuntimeError(
                f"KV memory is held by nobody: {self.used} tokens used, {self.parked} parked of {self.total}"
            )
