"""Learns how many threads a step should compute with, from how long steps take.

One thread may finish a step of few tokens sooner than many threads that wait for each other, above all where other
processes use the cores as well. Which is faster differs from machine to machine and from minute to minute. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_TRIALS = 3
"""Steps with each number of threads before one is chosen."""

LEARNING_RATE = 0.2
SHORTEST_PAUSE, LONGEST_PAUSE = 512, 4096
"""Steps between trials of other numbers of threads. The pause doubles with each trial that finds none better."""

SOON = 8
"""The first pause after fewer threads than all were chosen. It is short, since a moment's noise may be the reason."""

RELUCTANCE = 1.1
"""Fewer threads than all must be faster by this factor."""


@dataclass(slots=True)
class _Trial:
    """One number of threads for one size of step."""

    threads: int
    count: int = 0
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        # The first steps include what is made only once, so the second replaces it. A new best counts fully at once.
        self.count += 1
        if self.count <= 2 or seconds < self.seconds:  # noqa: PLR2004
            self.seconds = seconds
        else:
            self.seconds += LEARNING_RATE * (seconds - self.seconds)


@dataclass(slots=True)
class _Size:
    """The trials of one size of step, each with half the threads of the one before. Neighbours of the best are tried."""

    trials: list[_Trial]
    until_next: int = SHORTEST_PAUSE
    pause: int = SHORTEST_PAUSE

    @property
    def best(self) -> _Trial:
        most, tried = self.trials[0], [trial for trial in self.trials if trial.count]
        return min(
            tried, key=lambda trial: trial.seconds * (1.0 if trial is most else RELUCTANCE), default=most
        )

    def next(self) -> _Trial:
        best = self.best
        place = self.trials.index(best)
        # Only neighbours of the best are tried. On many cores a single thread could hold up everyone for seconds.
        near = [trial for trial in self.trials[max(0, place - 1) : place + 2] if trial is not best]
        untried = next((trial for trial in (best, *near) if trial.count < FIRST_TRIALS), None)
        self.until_next -= 1
        if untried is None and self.until_next <= 0 and near:
            self.pause = self.until_next = min(2 * self.pause, LONGEST_PAUSE)
            return min(near, key=lambda trial: trial.count)
        return untried or best


@dataclass(slots=True)
class ComputeThreads:
    """Chooses between `most` threads, half of them, a quarter and so on, separately for each size of step."""

    most: int
    _sizes: dict[int, _Size] = field(default_factory=dict, init=False)
    _trying: tuple[_Size, _Trial] | None = field(default=None, init=False)

    def choose(self, tokens: int) -> int:
        """Return the number of threads for a step of `tokens` tokens."""
        size = self._sizes.setdefault(tokens.bit_length(), _Size(_halved(self.most)))
        self._trying = size, size.next()
        return self._trying[1].threads

    def observe(self, seconds: float) -> None:
        """Learn how long the step took that the last choice was for."""
        if self._trying is None:
            return
        size, trial = self._trying
        before = size.best
        trial.observe(seconds)
        if size.best is not before:
            size.pause = size.until_next = SHORTEST_PAUSE if size.best is size.trials[0] else SOON


def _halved(most: int) -> list[_Trial]:
    return [_Trial(most >> halvings) for halvings in range(most.bit_length())]
