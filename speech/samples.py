"""Converts samples for recognizers and clients: one channel, linear, another rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

from speech.interfaces import Coding, Recording

Samples = npt.NDArray[np.int16]
FULL_SCALE = 32_768
"""Divides 16-bit samples to a range from -1 to 1."""


def mono(recording: Recording, rate: int) -> Samples:
    """Return a recording as one channel of 16-bit samples at a rate; channels are mixed."""
    samples = linear(recording.coding, recording.samples)
    if recording.channels > 1:
        mixed = samples.reshape(-1, recording.channels).mean(axis=1)
        samples = mixed.astype(np.int16)
    if recording.rate == rate:
        return samples
    return np.asarray(soxr.resample(samples, recording.rate, rate), np.int16)


class Resampler:
    """Brings a stream of 16-bit PCM to another rate, part by part."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        """`from_rate`, `to_rate`: samples per second."""
        self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="int16")

    def part(self, pcm: bytes, *, is_last: bool = False) -> bytes:
        """Return the samples that are ready after these whole samples."""
        samples = np.frombuffer(pcm, np.dtype("<i2"))
        return np.asarray(self._stream.resample_chunk(samples, last=is_last), np.dtype("<i2")).tobytes()


def linear(coding: Coding, sound: bytes) -> Samples:
    """Return whole samples as 16-bit samples."""
    if coding is Coding.PCM16:
        return np.frombuffer(sound, np.dtype("<i2")).astype(np.int16)
    return _TABLES[coding][np.frombuffer(sound, np.uint8)]


def converted(pcm: bytes, from_rate: int, to_rate: int, coding: Coding) -> bytes:
    """Return 16-bit PCM at another rate, in a coding."""
    if from_rate != to_rate:
        samples = np.frombuffer(pcm, np.dtype("<i2"))
        pcm = np.asarray(soxr.resample(samples, from_rate, to_rate), np.dtype("<i2")).tobytes()
    return pcm if coding is Coding.PCM16 else companded(pcm, coding)


def companded(pcm: bytes, coding: Coding) -> bytes:
    """Return 16-bit PCM as µ-law or A-law: for each sample the code with the nearest value."""
    samples = np.frombuffer(pcm, np.dtype("<i2"))
    values, codes = _CODES[coding]
    places = np.clip(np.searchsorted(values, samples), 1, len(values) - 1)
    below = samples.astype(np.int32) - values[places - 1] < values[places].astype(np.int32) - samples
    return np.asarray(codes[places - below], np.uint8).tobytes()


def _mulaw(code: int) -> int:
    """Return the value of a code of µ-law (ITU-T G.711): sign, exponent, mantissa, all inverted."""
    inverted = ~code & 0xFF
    size = (((inverted & 0x0F) << 3) + 0x84 << ((inverted & 0x70) >> 4)) - 0x84
    return -size if inverted & 0x80 else size


def _alaw(code: int) -> int:
    """Return the value of a code of A-law (ITU-T G.711): every second bit is inverted."""
    toggled = code ^ 0x55
    exponent, mantissa = (toggled & 0x70) >> 4, (toggled & 0x0F) << 4
    size = mantissa + 8 if exponent == 0 else mantissa + 0x108 << exponent - 1
    return size if toggled & 0x80 else -size


def _table(value: Callable[[int], int]) -> Samples:
    return np.array([value(code) for code in range(256)], np.int16)


_TABLES = {Coding.MULAW: _table(_mulaw), Coding.ALAW: _table(_alaw)}
_CODES = {
    coding: (np.sort(values), np.argsort(values).astype(np.uint8)) for coding, values in _TABLES.items()
}
"""Of each coding, the values of all codes, sorted, and their codes."""


HOP_S = 0.02
_SOFT_HOPS = 5
"""Hops whose mean is the loudness: one quiet hop within a word is not a pause."""


def quietest(wave: npt.NDArray[Any], start: int, end: int, rate: int) -> int:
    """Return the middle of the quietest tenth of a second between two samples."""
    hop = int(HOP_S * rate)
    hops = wave[start:end][: (end - start) // hop * hop].astype(np.float32).reshape(-1, hop)
    loudness = np.square(hops).mean(axis=1)
    soft = np.convolve(loudness, np.ones(_SOFT_HOPS), mode="valid")
    return start + int(soft.argmin()) * hop + _SOFT_HOPS * hop // 2
