"""How many prompt tokens a step may compute, learned from how long steps take.

Knows seconds and tokens, no clock: times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_BUDGET = 128
SMALLEST_BUDGET = 16
LARGEST_BUDGET = 4096

LEAST_SHARE = 0.25
"""Of the target is left to prompts, at least, however long the running replies alone take."""

OF_THE_LAST_GOOD = 8
"""The last budget that a step did in time, divided by this, is the least one."""

ALONE = 3.0
"""A step without replies may take this many times the target: nobody's text waits for it, and each step costs beside its
tokens. Its own cancel and whoever comes wait that long. Measured on two cores, a 768x12 Llama, first token of 1,387: 1.2
times as long with steps of the target's length.
"""

FULL_ROWS = 64
"""Rows from which on a step's time grows with its rows. Matrix products of fewer take about as long as of these."""

ROWS = 16
"""Rows are computed by so many: what a chunk has beyond a multiple of it costs as much as all of these."""

LONGEST = 2.0
"""A step of full rows may take this many times the target: smaller ones would be hardly shorter, and twice as many."""

FORGETS = 0.98
"""Of what full rows took, so much is believed behind each step of fewer: they are tried again."""

NOISE = 0.1
"""By how much steps of one kind differ, as a share: of what was expected, and at least of the target."""

DRIFT = 0.2
"""By how much a step may take longer or shorter than the one before because something changed: replies came or went."""

ODDEST = 3.0
"""A step counts as this many times as long as was expected, at most: one odd step says little of the next ones."""

_SHRINKS = 0.5
"""Of an estimate, at least, is left by one step."""


@dataclass(slots=True)
class PrefillPace:
    """Sizes prefill chunks so that a step takes about `target_s`: running replies wait no longer, nor do cancels beside them."""

    target_s: float
    _steps: _StepTimes = field(init=False)
    _largest_seen: int = FIRST_BUDGET // 2
    _last_good: int = SMALLEST_BUDGET
    _full_s: float = 0.0

    def __post_init__(self) -> None:
        self._steps = _StepTimes(NOISE * self.target_s)

    @property
    def budget(self) -> int:
        """Prompt tokens for the next step. Grows at most twofold beyond what was tried, never to zero."""
        return self._budget(max(self.target_s - self._steps.decode_s, LEAST_SHARE * self.target_s))

    def _budget(self, left_s: float) -> int:
        if not self._steps.token_s:
            return FIRST_BUDGET
        affordable = int(min(left_s / self._steps.token_s, LARGEST_BUDGET))
        least = max(SMALLEST_BUDGET, self._last_good // OF_THE_LAST_GOOD)
        return max(least, min(affordable, 2 * self._largest_seen))

    def budget_beside(self, replies: int) -> int:
        """Return the prompt tokens for a step in which so many replies run: enough to fill its rows, where that is in time."""
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
    """What running replies take in a step, and what each prompt token adds: a Kalman filter (Kalman 1960) over both.

    A step that had both changes whichever was known worse. So steps of different sizes tell them apart, though no step
    without a prompt ever comes. `_doubts`: the variances of both; that they vary together is left out.
    """

    noise_s: float
    decode_s: float = 0.0
    token_s: float = 0.0
    _doubts: tuple[float, float] = (0.0, 0.0)

    def learn(self, seconds: float, *, decoding: bool, tokens: int) -> None:
        """Take how long a step took, and what was in it."""
        if decoding:
            # Replies alone take no longer than with a prompt.
            self.decode_s = min(self.decode_s, seconds) or (NOISE * seconds if tokens else seconds)
        if tokens and not self.token_s:
            self.token_s = max(seconds - decoding * self.decode_s, NOISE * seconds) / tokens
        else:
            self._correct(seconds, float(decoding), tokens)

    def _correct(self, seconds: float, decoding: float, tokens: int) -> None:
        of_decode, of_token = self._doubts
        # Whatever was learned may have changed since.
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
