"""Sounds that are no words: what a microphone hears of a room and of a listener, as 16-bit samples at 16 kHz.

All are made: bands of noise, tones and buzzes under an envelope.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
LOUD = 9_000
"""The loudest sample, about that of a voice."""
Wave = NDArray[np.float64]
Pcm = NDArray[np.int16]


def _time(ms: float) -> Wave:
    return np.arange(int(RATE * ms / 1000)) / RATE


def _band(ms: float, low: float, high: float, seed: int = 0) -> Wave:
    """Return noise between two frequencies."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).normal(size=int(RATE * ms / 1000)))
    frequencies = np.fft.rfftfreq(int(RATE * ms / 1000), 1 / RATE)
    spectrum[(frequencies < low) | (frequencies > high)] = 0
    sound = np.fft.irfft(spectrum, int(RATE * ms / 1000))
    return np.asarray(sound / np.abs(sound).max())


def _buzz(ms: float, pitch: float) -> Wave:
    """Return the sound of vocal cords: all harmonics of a pitch, which falls a little."""
    phase = np.cumsum(pitch * np.linspace(1.05, 0.9, int(RATE * ms / 1000))) / RATE
    sound = sum(np.sin(2 * np.pi * number * phase) / number for number in range(1, 25))
    return np.asarray(sound / np.abs(sound).max())


def _tones(ms: float, *frequencies: float) -> Wave:
    return np.asarray(sum(np.sin(2 * np.pi * frequency * _time(ms)) for frequency in frequencies))


def _faded(sound: Wave, attack_ms: float, fall: float = 0.0) -> Wave:
    """Return sound that grows within `attack_ms`, falls by `fall` time constants, and ends without a click."""
    place = np.arange(len(sound))
    grown = np.minimum(1, place / max(1, RATE * attack_ms / 1000)) * np.exp(-fall * place / len(sound))
    return np.asarray(sound * grown * np.minimum(1, (len(sound) - place) / (RATE * 0.01)))


def _row(*parts: Wave, gap_ms: float) -> Wave:
    gap = np.zeros(int(RATE * gap_ms / 1000))
    return np.concatenate([piece for part in parts for piece in (part, gap)][:-1])


def _cough(ms: float, *, seed: int = 0, pitch: float = 0.0) -> Wave:
    """Return a cough: a burst, its fall, and what the vocal cords add if they do."""
    sound = _faded(_band(ms, 300, 6000, seed), 4, 4) + _faded(_band(ms, 400, 1800, seed + 1), 15, 3)
    return sound + _faded(_buzz(ms, pitch), 40, 3) if pitch else sound


def _typing() -> Wave:
    clicks = [_faded(_band(25, 1500, 7000, seed), 1, 5) for seed in range(14)]
    return _row(*clicks, gap_ms=110)


def _chirp(ms: float, start: float, end: float) -> Wave:
    return np.asarray(np.sin(2 * np.pi * np.cumsum(np.linspace(start, end, int(RATE * ms / 1000))) / RATE))


_MAKERS: dict[str, Callable[[], Wave]] = {
    "a cough, 0.15 s": lambda: _cough(150),
    "a cough, 0.25 s": lambda: _cough(250, seed=2),
    "a cough, 0.4 s": lambda: _cough(400, seed=4),
    "a cough with voice, 0.35 s": lambda: _cough(350, seed=6, pitch=140),
    "a cough with voice, 0.5 s": lambda: _cough(500, seed=8, pitch=110),
    "a fit of four coughs": lambda: _row(
        *(_cough(300, seed=seed, pitch=130) for seed in range(4)), gap_ms=180
    ),
    "a cleared throat": lambda: _faded(
        (_buzz(450, 95) + 0.8 * _band(450, 200, 2500)) * (1 + np.sin(2 * np.pi * 28 * _time(450))), 30, 1
    ),
    "a sneeze": lambda: _row(
        _faded(_band(350, 800, 5000), 250), _faded(_band(300, 1000, 7500, 1), 3, 4), gap_ms=30
    ),
    "a breath": lambda: 0.35 * _faded(_band(900, 400, 4000), 400, 1),
    "a tone of 440 Hz, 1 s": lambda: _faded(_tones(1000, 440), 10),
    "a tone of 440 Hz, 3 s": lambda: _faded(_tones(3000, 440), 10),
    "a hum": lambda: _faded(_buzz(900, 120) * 0.6 + _tones(900, 120, 240), 80),
    "a whistle": lambda: _faded(_chirp(700, 900, 1700), 40),
    "a clap": lambda: _faded(_band(120, 500, 7000), 1, 7),
    "a slammed door": lambda: _faded(_band(400, 40, 600), 2, 6),
    "typing": _typing,
    "a ring": lambda: _row(*(_faded(_tones(400, 440, 480), 10) for _ in range(3)), gap_ms=200),
    "a hiss, 1.5 s": lambda: 0.5 * _faded(_band(1500, 100, 7500), 20),
    "a drill, 10 s": lambda: 0.5 * _faded(_band(10_000, 100, 7500), 20),
}
NOISES = tuple(_MAKERS)
"""The names of the sounds."""


def noise(name: str) -> Pcm:
    """Return a sound by its name."""
    sound = _MAKERS[name]()
    loudest = LOUD * min(1.0, float(np.abs(sound).max()))
    return np.asarray(sound / np.abs(sound).max() * loudest).astype(np.int16)
