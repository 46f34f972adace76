"""Tells sound with a voice in it from coughs, claps, hisses and tones, before anybody looks for words in it.

A vowel repeats itself 70 to 400 times a second, which no noise does (the autocorrelation method; Rabiner, 1977), and has
overtones, which no tone has. A recognizer's own scores do not tell: PocketSphinx matches a cough better than most words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from speech.sound.samples import Samples

VOICED_MS = 80
"""The least of a voice: the vowel of a "stop" has a tenth of a second."""
_WINDOW_MS, _STEP_MS = 40, 20
_PITCHES_HZ = (70, 400)
_PERIODIC = 0.5
"""The least correlation with the period before."""
_PURE, _PEAK_HZ = 0.8, 80
"""The share of the energy this close to the strongest frequency from which on it is a tone."""
_LOUD = 0.03
"""Softer windows, by their share of the loudest one's energy, do not count."""


def voiced_ms(samples: Samples, rate: int) -> int:
    """Return how much of the sound, with one channel, is a voice."""
    size, step = rate * _WINDOW_MS // 1000, rate * _STEP_MS // 1000
    if len(samples) < size:
        return 0
    taper = np.hanning(size)
    windows = np.lib.stride_tricks.sliding_window_view(samples, size)[::step] * taper
    power = _power(windows)
    energy = power.sum(axis=1)
    loud = (energy > _LOUD * energy.max()) & (energy > 0)
    power, energy = power[loud], energy[loud]
    shortest, longest = (rate // hz for hz in reversed(_PITCHES_HZ))
    repeats = np.fft.irfft(power)[:, : longest + 1]
    own = np.fft.irfft(_power(taper))[: longest + 1]
    correlation = (repeats / repeats[:, :1]) / (own / own[0])
    is_periodic = correlation[:, shortest:].max(axis=1, initial=0) > _PERIODIC
    return int((is_periodic & (_purity(power, rate) < _PURE)).sum()) * _STEP_MS


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
