"""How many prompt tokens a step may compute, learned from how long steps take.

Knows seconds and tokens, no clock: times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_BUDGET = 128
SMALLEST_BUDGET = 16
LARGEST_BUDGET = 4096
LEARNING_RATE = 0.5


@dataclass(slots=True)
class PrefillPace:
    """Sizes prefill chunks so that a step takes about `target_s`: neither cancels nor running replies wait longer."""

    target_s: float
    _seconds_per_token: float | None = None
    _decode_s: float = 0.0
    _largest_seen: int = FIRST_BUDGET // 2

    @property
    def budget(self) -> int:
        """Prompt tokens for the next step. Grows at most twofold beyond what was tried, never to zero."""
        if not self._seconds_per_token:
            return FIRST_BUDGET
        affordable = int((self.target_s - self._decode_s) / self._seconds_per_token)
        return max(SMALLEST_BUDGET, min(affordable, 2 * self._largest_seen, LARGEST_BUDGET))

    def observe(self, *, prefill_tokens: int, decoding: bool, seconds: float) -> None:
        """Learn from a step that took `seconds`. `decoding`: whether running replies took part."""
        if not prefill_tokens:
            self._decode_s += LEARNING_RATE * (seconds - self._decode_s)
            return
        # A step that the replies alone would have filled says nothing better than "fast".
        spent = max(seconds - (self._decode_s if decoding else 0.0), 0.1 * seconds)
        # Few tokens say little: what they take is mostly the cost of any step.
        weight = LEARNING_RATE * min(1.0, prefill_tokens / self.budget)
        before = spent / prefill_tokens if self._seconds_per_token is None else self._seconds_per_token
        self._seconds_per_token = before + weight * (spent / prefill_tokens - before)
        self._largest_seen = max(self._largest_seen, prefill_tokens)
