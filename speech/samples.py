"""Converts samples for recognizers and clients: one channel, another rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

from speech.interfaces import Recording

Samples = npt.NDArray[np.int16]
FULL_SCALE = 32_768
"""Divides 16-bit samples to a range from -1 to 1."""


def mono(recording: Recording, rate: int) -> Samples:
    """Return a recording as one channel of 16-bit samples at a rate; channels are mixed."""
    samples = np.frombuffer(recording.samples, np.dtype("<i2")).astype(np.int16)
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


def converted(pcm: bytes, from_rate: int, to_rate: int) -> bytes:
    """Return 16-bit PCM at another rate."""
    if from_rate == to_rate:
        return pcm
    samples = np.frombuffer(pcm, np.dtype("<i2"))
    return np.asarray(soxr.resample(samples, from_rate, to_rate), np.dtype("<i2")).tobytes()


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
