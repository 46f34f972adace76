"""Converts verdicts on frames to the times when speech began, paused, resumed and ended. Pure; the sound is its clock.

SILENT ──enough speech──► SPEAKING ──pause_ms of silence──► PAUSED ──silence_ms of silence──► SILENT
                              ▲                                │
                              └──────────speech again──────────┘

A pause waits for its judgement, however late: silence that ends no incomplete sentence ends none that is unknown.
If speech went on meanwhile, `would_end` tells whether the pause was the end nevertheless. A pause is told a second time
if the sentence was judged incomplete, and the silence would end a complete one.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Literal

import msgspec

WINDOW_MS = 240
"""Speech begins when it fills its share of a window of this length: a click or a cough is shorter."""
AGAIN_MS = 60
"""Continuous speech of this length ends a silence."""
LONGEST_MS = 60_000
"""A longer utterance is ended there, so that its sound is bounded."""
GOING_MS = 90
"""How often continuing speech is reported."""


class SpeechEventKind(Enum):
    """The kinds of moments."""

    STARTED = "started"
    GOING = "going"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"


class SpeechEvent(msgspec.Struct, frozen=True):
    """A change, and its time. `started_ms`: when the utterance began."""

    kind: SpeechEventKind
    at_ms: int
    started_ms: int


class EndpointDetector:
    """One speaker."""

    def __init__(
        self,
        *,
        frame_ms: int,
        pause_ms: int,
        silence_ms: int,
        threshold: float,
        unfinished_ms: int,
        finished_ms: int,
    ) -> None:
        """`threshold`: the share of a window, 0 to 1, that must be speech. `unfinished_ms`, `finished_ms`: see `judge`."""
        self._frame_ms = frame_ms
        self._pause_ms = pause_ms
        self._silences_ms: dict[bool | Literal["unjudged"] | None, int] = {
            None: silence_ms,
            False: (longest_ms := max(silence_ms, unfinished_ms)),
            True: min(silence_ms, finished_ms),
            "unjudged": longest_ms,
        }
        self._is_whole: bool | Literal["unjudged"] | None = None
        frames = max(1, WINDOW_MS // frame_ms)
        self._enough = max(1, round(threshold * frames))
        self._window: deque[bool] = deque(maxlen=frames)
        self._now_ms = 0
        self._started_ms: int | None = None
        self._last_ms = 0
        self._reported_ms = 0
        self._run_ms = 0
        self._pauses = 0  # that were told of this silence

    @property
    def is_speaking(self) -> bool:
        """Whether the speaker began and has not stopped."""
        return self._started_ms is not None

    def take(self, *, is_speech: bool) -> SpeechEvent | None:
        """Take the next frame's verdict."""
        self._now_ms += self._frame_ms
        self._run_ms = self._run_ms + self._frame_ms if is_speech else 0
        if self._started_ms is None:
            self._window.append(is_speech)
            return self._begin() if sum(self._window) >= self._enough else None
        return self._go_on(self._started_ms)

    def pass_by(self) -> None:
        """Let a frame pass without a verdict."""
        self._now_ms += self._frame_ms

    def judge(self, *, is_whole: bool | None) -> SpeechEvent | None:
        """Note whether the utterance before the pause is a complete sentence; None: nobody can know.

        Until speech resumes, a complete one ends after `finished_ms`, if that is less than `silence_ms`, and an
        incomplete one after `unfinished_ms`, if that is more. After `finished_ms` it is asked for once more: a soft
        last sound, as of "six", is silence for the detector. Return its end if the silence was long enough already.
        """
        if self._started_ms is None or not self._pauses:
            return None
        self._is_whole = is_whole
        is_over = self._now_ms - self._last_ms >= self._silences_ms[is_whole]
        return self._stop(self._started_ms, self._last_ms) if is_over else None

    def would_end(self, pause: SpeechEvent, resumed: SpeechEvent, *, is_whole: bool | None) -> bool:
        """Return whether the silence between the two would have ended the utterance, had it been judged at once."""
        return resumed.at_ms - pause.at_ms >= self._silences_ms[is_whole]

    def end(self) -> SpeechEvent:
        """End the utterance, with or without speech."""
        started_ms = self._now_ms if self._started_ms is None else self._started_ms
        return self._stop(started_ms, self._now_ms)

    def reset(self) -> None:
        """Forget the utterance; time continues."""
        self._started_ms = None
        self._forget_pause()
        self._window.clear()

    def _begin(self) -> SpeechEvent:
        first = next(place for place, spoke in enumerate(self._window) if spoke)
        started_ms = self._now_ms - (len(self._window) - first) * self._frame_ms
        self._started_ms = started_ms
        self._last_ms = self._reported_ms = self._now_ms
        return SpeechEvent(SpeechEventKind.STARTED, started_ms, started_ms)

    def _go_on(self, started_ms: int) -> SpeechEvent | None:
        if self._run_ms >= AGAIN_MS:
            self._last_ms = self._now_ms
        if self._now_ms - started_ms >= LONGEST_MS:
            return self._stop(started_ms, self._now_ms)
        if self._last_ms == self._now_ms:
            return self._spoken(started_ms)
        return self._silent(started_ms, self._now_ms - self._last_ms)

    def _spoken(self, started_ms: int) -> SpeechEvent | None:
        if self._pauses:
            self._forget_pause()
            self._reported_ms = self._now_ms
            return SpeechEvent(SpeechEventKind.RESUMED, self._now_ms - self._run_ms, started_ms)
        if self._now_ms - self._reported_ms < GOING_MS:
            return None
        self._reported_ms = self._now_ms
        return SpeechEvent(SpeechEventKind.GOING, self._now_ms, started_ms)

    def _silent(self, started_ms: int, silence_ms: int) -> SpeechEvent | None:
        if silence_ms >= self._silences_ms[self._is_whole]:
            return self._stop(started_ms, self._last_ms)
        is_due = silence_ms >= self._pause_ms and self._pauses == 0
        is_due_again = silence_ms >= self._silences_ms[True] and self._pauses == 1 and self._is_whole is False
        if not (is_due or is_due_again):
            return None
        self._pauses += 1
        if is_due:
            self._is_whole = "unjudged"
        return SpeechEvent(SpeechEventKind.PAUSED, self._last_ms, started_ms)

    def _forget_pause(self) -> None:
        self._pauses, self._is_whole = 0, None

    def _stop(self, started_ms: int, at_ms: int) -> SpeechEvent:
        self.reset()
        return SpeechEvent(SpeechEventKind.STOPPED, at_ms, started_ms)
