"""Where speech begins, pauses and ends, by the verdicts on its frames, and whether sound has a voice in it.

A vowel repeats itself 70 to 400 times a second, which no noise does (the autocorrelation method; Rabiner, 1977), and has
overtones, which no tone has. A recognizer's own scores do not show it: PocketSphinx matches a cough better than most words.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from speech.samples import Samples

_VOICED_MS = 80
"""The least duration of a voice: the vowel of "stop" lasts a tenth of a second."""

_WINDOW_MS, _STEP_MS = 40, 20
_PITCHES_HZ = (70, 400)

_PERIODIC = 0.5
"""The least correlation of a voice with its previous period."""

_PURE, _PEAK_HZ = 0.8, 80
"""Sound with at least this share of its energy this close to its strongest frequency is a tone."""

_LOUD, _BANGS = 0.03, 0.9
"""Windows below this share of the energy at this quantile are too soft to count. Louder ones than the quantile may be bangs."""

_BATCH = 16
"""Windows that are looked at together: a voice is found in the first ones."""

WINDOW_MS = 240
"""Speech begins when it fills its share of a window of this length: a click or a cough is shorter."""

AGAIN_MS = 60
"""Continuous speech of this length ends a silence."""

LONGEST_MS = 60_000
"""A longer utterance is ended at this length, so that its sound is bounded."""

GOING_MS = 90
"""How often continuing speech is reported."""


def has_voice(samples: Samples, rate: int) -> bool:
    """Return whether there is a voice in the sound, which has one channel."""
    size, step = rate * _WINDOW_MS // 1000, rate * _STEP_MS // 1000
    if len(samples) < size:
        return False
    taper = np.hanning(size)
    windows = np.lib.stride_tricks.sliding_window_view(samples, size)[::step] * taper
    energy = np.square(windows).sum(axis=1)
    loud = windows[(energy > _LOUD * np.quantile(energy, _BANGS)) & (energy > 0)]
    own = np.fft.irfft(_power(taper))
    voiced_ms = 0
    for start in range(0, len(loud), _BATCH):
        voiced_ms += _voiced(loud[start : start + _BATCH], own / own[0], rate) * _STEP_MS
        if voiced_ms >= _VOICED_MS:
            return True
    return False


def _voiced(windows: NDArray[np.float64], own: NDArray[np.float64], rate: int) -> int:
    """Return how many windows are periodic and not tones. `own`: the autocorrelation of their taper."""
    power = _power(windows)
    shortest, longest = (rate // hz for hz in reversed(_PITCHES_HZ))
    repeats = np.fft.irfft(power)[:, : longest + 1]
    correlation = repeats[:, shortest:] / repeats[:, :1] / own[shortest : longest + 1]
    return int(((correlation.max(axis=1) > _PERIODIC) & (_purity(power, rate) < _PURE)).sum())


def _power(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return spectra of energy, with so much padding that no period wraps around."""
    return np.abs(np.fft.rfft(windows, 2 * windows.shape[-1])) ** 2


def _purity(power: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """Return the share of energy around the strongest frequency, for each spectrum."""
    near = round(_PEAK_HZ * 2 * (power.shape[1] - 1) / rate)
    sums = np.pad(np.cumsum(power, axis=1), ((0, 0), (near + 1, near)), mode="edge")
    sums[:, : near + 1] = 0
    peaks = power.argmax(axis=1)[:, None]
    around = np.take_along_axis(sums, peaks + 2 * near + 1, axis=1) - np.take_along_axis(sums, peaks, axis=1)
    return np.asarray(around[:, 0] / power.sum(axis=1))


class SpeechEventKind(Enum):
    """The kinds of `SpeechEvent`."""

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
    """Detects where one speaker's speech begins, pauses and ends."""

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
        self._pauses = 0  # reported of this silence

    @property
    def is_speaking(self) -> bool:
        """Whether the speaker began and has not stopped."""
        return self._started_ms is not None

    def take(self, *, is_speech: bool) -> SpeechEvent | None:
        """Take the verdict on the next frame; return the change, if any."""
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
        """Note whether the utterance before the pause is a complete sentence; None: this can't be known.

        Until speech resumes, a complete one ends after `finished_ms`, if that is less than `silence_ms`, and an incomplete one
        after `unfinished_ms`, if that is more. After `finished_ms` an incomplete one is reported as paused once more, to be
        judged again: a soft last sound, as of "six", is silence for the detector. Return the utterance's end if the silence was
        long enough already.
        """
        if self._started_ms is None or not self._pauses:
            return None
        self._is_whole = is_whole
        is_over = self._now_ms - self._last_ms >= self._silences_ms[is_whole]
        return self._stop(self._started_ms, self._last_ms) if is_over else None

    def would_end(self, pause: SpeechEvent, resumed: SpeechEvent, *, is_whole: bool | None) -> bool:
        """Return whether the silence between `pause` and `resumed` would have ended the utterance, had it been judged at once."""
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
