"""How many threads a step computes with, learned from how long steps take.

A step of few tokens may be done sooner by one thread than by many that wait for each other, above all where other
processes want the cores as well; which it is differs from machine to machine and from minute to minute. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_TRIALS = 3
"""Steps with each number of threads before one is chosen."""

LEARNING_RATE = 0.2
SHORTEST_PAUSE, LONGEST_PAUSE = 128, 4096
"""Steps between trials of what is not the choice; doubled each time that it is no better."""

RELUCTANCE = 1.1
"""Fewer threads than all must be so much faster."""


@dataclass(slots=True)
class _Trial:
    """One number of threads for one size of step."""

    threads: int
    count: int = 0
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        # The first ones include what is made once; a new best is believed at once.
        self.count += 1
        if self.count <= 2 or seconds < self.seconds:  # noqa: PLR2004
            self.seconds = seconds
        else:
            self.seconds += LEARNING_RATE * (seconds - self.seconds)


@dataclass(slots=True)
class _Size:
    trials: list[_Trial]
    until_next: int = SHORTEST_PAUSE
    pause: int = SHORTEST_PAUSE

    @property
    def best(self) -> _Trial:
        most = self.trials[0]
        return min(self.trials, key=lambda trial: trial.seconds * (1.0 if trial is most else RELUCTANCE))


@dataclass(slots=True)
class ComputeThreads:
    """Chooses between one thread, half of `most` and `most`, for each size of step by itself."""

    most: int
    _sizes: dict[int, _Size] = field(default_factory=dict, init=False)
    _trying: _Trial | None = field(default=None, init=False)
    _tried_in: _Size | None = field(default=None, init=False)

    def choose(self, tokens: int) -> int:
        """Return the threads for a step of so many tokens."""
        size = self._sizes.setdefault(tokens.bit_length(), self._new())
        untried = next((trial for trial in size.trials if trial.count < FIRST_TRIALS), None)
        size.until_next -= 1
        self._tried_in = size
        self._trying = untried or (self._other(size) if size.until_next <= 0 else size.best)
        return self._trying.threads

    def observe(self, seconds: float) -> None:
        """Learn how long the step took that was chosen for last."""
        if self._trying is None or self._tried_in is None:
            return
        before = self._tried_in.best
        self._trying.observe(seconds)
        if self._tried_in.best is not before:
            self._tried_in.pause = self._tried_in.until_next = SHORTEST_PAUSE

    def _new(self) -> _Size:
        counts = sorted({self.most, max(1, self.most // 2), 1}, reverse=True)
        return _Size([_Trial(count) for count in counts])

    def _other(self, size: _Size) -> _Trial:
        """Try the one that was tried least; the pause grows while that changes nothing."""
        best = size.best
        others = [trial for trial in size.trials if trial is not best] or [best]
        size.pause = min(2 * size.pause, LONGEST_PAUSE)
        size.until_next = size.pause
        return min(others, key=lambda trial: trial.count)
