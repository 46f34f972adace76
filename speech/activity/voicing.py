"""Distinguishes sound with a voice in it from coughs, claps, hisses and tones, before words are recognized.

A vowel repeats itself 70 to 400 times a second, which no noise does (the autocorrelation method; Rabiner, 1977), and has
overtones, which no tone has. A recognizer's own scores do not tell: PocketSphinx matches a cough better than most words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from speech.sound.samples import Samples

_VOICED_MS = 80
"""The least of a voice: the vowel of a "stop" has a tenth of a second."""
_WINDOW_MS, _STEP_MS = 40, 20
_PITCHES_HZ = (70, 400)
_PERIODIC = 0.5
"""The least correlation with the period before."""
_PURE, _PEAK_HZ = 0.8, 80
"""The share of the energy this close to the strongest frequency from which on it is a tone."""
_LOUD, _BANGS = 0.03, 0.9
"""Softer windows, by their share of a loud one's energy, do not count. Louder than that one may be a bang."""
_BATCH = 16
"""Windows that are looked at together: a voice is found in the first ones."""


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
    """Return how many windows are periodic and no tones. `own`: the correlation of their taper with itself."""
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
