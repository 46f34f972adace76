"""Learns from the times of steps how many prompt tokens a step may compute.

Knows seconds and tokens, but no clock: times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_BUDGET = 128
SMALLEST_BUDGET = 16
LARGEST_BUDGET = 4096

LEAST_SHARE = 0.25
"""The least share of the target that is left to prompts, however long the running replies alone take."""

OF_THE_LAST_GOOD = 8
"""The smallest budget is the last one that a step computed in time, divided by this."""

ALONE = 3.0
"""A step without replies may take this many times the target: nobody's text waits for it, and each step has fixed costs.
Only its own cancel and new requests wait that long. Measured on two cores, a 768x12 Llama, first token of 1,387: 1.2
times as long with steps of the target's length.
"""

FULL_ROWS = 64
"""From so many rows on, a step's time grows with its rows. Matrix products of fewer rows take about as long as of these."""

ROWS = 16
"""Rows are computed in groups of this size. The rows of a chunk beyond a multiple of it cost as much as a whole group."""

LONGEST = 2.0
"""A step of full rows may take this many times the target. Smaller steps would be hardly shorter, and twice as many."""

FORGETS = 0.98
"""The time of full rows is multiplied by this after each step of fewer rows, so that full rows are tried again."""

NOISE = 0.1
"""By how much steps of one kind differ, as a share of the expected time, and of the target."""

DRIFT = 0.2
"""By how much estimates may change from step to step, as a share, since replies come and go."""

ODDEST = 3.0
"""A step counts as at most this many times the expected time, since one odd step says little of the next ones."""

_SHRINKS = 0.5
"""The least share of an estimate that is left after one step."""


@dataclass(slots=True)
class PrefillBudget:
    """Sizes prefill chunks so that a step takes about `target_s`, which is how long running replies and cancels wait."""

    target_s: float
    _steps: _StepTimes = field(init=False)
    _largest_seen: int = FIRST_BUDGET // 2
    _last_good: int = SMALLEST_BUDGET
    _full_s: float = 0.0

    def __post_init__(self) -> None:
        self._steps = _StepTimes(NOISE * self.target_s)

    @property
    def budget(self) -> int:
        """The prompt tokens for the next step: never zero, and at most twice the most that was tried."""
        return self._budget(max(self.target_s - self._steps.decode_s, LEAST_SHARE * self.target_s))

    def _budget(self, left_s: float) -> int:
        if not self._steps.token_s:
            return FIRST_BUDGET
        affordable = int(min(left_s / self._steps.token_s, LARGEST_BUDGET))
        least = max(SMALLEST_BUDGET, self._last_good // OF_THE_LAST_GOOD)
        return max(least, min(affordable, 2 * self._largest_seen))

    def budget_beside(self, replies: int) -> int:
        """Return the prompt tokens for a step with `replies` running replies: enough to fill its rows, if time allows."""
        budget = self.budget if replies else self._budget(ALONE * self.target_s)
        if self._full_s <= LONGEST * self.target_s:
            budget = max(budget, FULL_ROWS - replies)
        over = (replies + budget) % ROWS
        return budget - over if replies + budget - over >= FULL_ROWS and budget > over else budget

    def observe(self, *, prefill_tokens: int, decoding: bool, seconds: float) -> None:
        """Learn from a step that took `seconds`. `decoding`: whether running replies took part."""
        if prefill_tokens >= self.budget // 2 and seconds <= self.target_s:
            self._last_good = min(prefill_tokens, LARGEST_BUDGET)
        self._steps.learn(seconds, decoding=decoding or not prefill_tokens, tokens=prefill_tokens)
        self._largest_seen = max(self._largest_seen, prefill_tokens)
        if prefill_tokens >= FULL_ROWS // 2:
            longest = OF_THE_LAST_GOOD * self.target_s
            self._full_s = min(seconds * min(1.0, FULL_ROWS / prefill_tokens), longest)
        elif prefill_tokens:
            self._full_s *= FORGETS


@dataclass(slots=True)
class _StepTimes:
    """Estimates the time of running replies in a step, and of each prompt token, by a Kalman filter (Kalman 1960).

    A step that had both changes mostly the estimate that is less certain. So steps of different sizes tell them apart,
    even if every step has a prompt. `_doubts`: the variances of both; their covariance is left out.
    """

    noise_s: float
    decode_s: float = 0.0
    token_s: float = 0.0
    _doubts: tuple[float, float] = (0.0, 0.0)

    def learn(self, seconds: float, *, decoding: bool, tokens: int) -> None:
        """Take the time of a step, and what was in it."""
        if decoding:
            # Replies alone take no longer than replies with a prompt.
            self.decode_s = min(self.decode_s, seconds) or (NOISE * seconds if tokens else seconds)
        if tokens and not self.token_s:
            self.token_s = max(seconds - decoding * self.decode_s, NOISE * seconds) / tokens
        else:
            self._correct(seconds, float(decoding), tokens)

    def _correct(self, seconds: float, decoding: float, tokens: int) -> None:
        of_decode, of_token = self._doubts
        # The times may have changed since they were learned.
        of_decode = min(of_decode + (DRIFT * self.decode_s) ** 2, self.decode_s**2)
        of_token = min(of_token + (DRIFT * self.token_s) ** 2, self.token_s**2)
        expected = decoding * self.decode_s + tokens * self.token_s
        noise = self.noise_s**2 + (NOISE * expected) ** 2
        doubt = decoding * of_decode + tokens**2 * of_token + noise
        off = (min(seconds, ODDEST * expected) - expected) / doubt
        self.decode_s = max(self.decode_s + off * decoding * of_decode, _SHRINKS * self.decode_s)
        self.token_s = max(self.token_s + off * tokens * of_token, _SHRINKS * self.token_s)
        self._doubts = (
            of_decode - decoding * of_decode**2 / doubt,
            of_token - (tokens * of_token) ** 2 / doubt,
        )
