"""A WAV file is taken for what is in it, not for what it claims."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.interfaces import WIDTH, Recording
from speech.recordings import header, wav_recording
from speech.samples import Resampler, mono

SECOND = b"\x01\x00" * 16_000


def wav(
    samples: bytes = SECOND, *, tag: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16
) -> bytes:
    width = channels * bits // 8
    reported = struct.pack("<HHIIHH", tag, channels, rate, rate * width % 2**32, width, bits)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", len(reported))
        + reported
        + struct.pack("<4sI", b"data", len(samples))
        + samples
    )


@pytest.mark.parametrize("head", [wav()[:44], header(16_000)], ids=["known length", "unknown length"])
def test_a_header_says_what_the_samples_are(head: bytes) -> None:
    assert wav_recording(head + SECOND) == Recording(16_000, 1, SECOND)


@pytest.mark.parametrize(
    "file",
    [
        *(wav(tag=3, bits=32), wav(tag=7, bits=8), wav(bits=24), wav(channels=200), wav(channels=0)),
        *(wav(rate=4_000_000_000), wav(rate=0), wav()[:30], wav().replace(b"data", b"junk")),
    ],
)
def test_another_file_is_left_to_the_decoder(file: bytes) -> None:
    assert wav_recording(file) is None


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_file_has_whole_samples_or_is_left_to_the_decoder(noise: bytes, at: int) -> None:
    whole = wav(SECOND[:6400])
    recording = wav_recording(whole[:at] + noise + whole[at + len(noise) :])
    if recording is not None:
        assert len(recording.samples) % (WIDTH * recording.channels) == 0


def test_channels_are_mixed_and_rates_are_brought_to_one() -> None:
    two = np.repeat(np.array([[1000, 3000]], np.int16), 44_100, axis=0)
    mixed = mono(Recording(44_100, 2, two.tobytes()), 16_000)
    assert len(mixed) == 16_000
    assert np.all(abs(mixed[1000:-1000] - 2000) < 2)


def test_a_stream_is_resampled_to_what_the_whole_would_be() -> None:
    tone = (np.sin(np.arange(22_050) / 8) * 9000).astype("<i2").tobytes()
    resampler = Resampler(22_050, 24_000)
    parts = [resampler.part(tone[at : at + 1000]) for at in range(0, len(tone), 1000)]
    whole = Resampler(22_050, 24_000).part(tone, is_last=True)
    joined = b"".join(parts) + resampler.part(b"", is_last=True)
    assert len(joined) == len(whole) == 48_000
    assert np.max(np.abs(np.frombuffer(joined, "<i2") - np.frombuffer(whole, "<i2").astype(int))) <= 4
