"""A WAV file is taken for what is in it, not for what it claims."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.errors import BadSound
from speech.interfaces import Coding, Recording
from speech.recordings import header, recording_of
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


def test_a_header_says_what_the_samples_are() -> None:
    assert recording_of(wav(), is_raw=False) == Recording(Coding.PCM16, 16_000, 1, SECOND)


def test_a_length_beyond_the_file_is_not_believed() -> None:
    assert recording_of(header(16_000) + SECOND, is_raw=False).seconds == 1


def test_sound_without_a_header_has_24000_samples_a_second() -> None:
    assert recording_of(SECOND * 3, is_raw=True).seconds == 2


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "empty"),
        (b"ID3\x04 a song", "not a kind of sound that this server takes"),
        (wav(b""), "too short"),
        (wav(tag=3, bits=32), "of a kind that is not taken"),
        (wav(bits=24), "of a kind that is not taken"),
        (wav(channels=200), "200 channels"),
        (wav(channels=0), "0 channels"),
        (wav(rate=4_000_000_000), "4,000,000,000 samples a second"),
        (wav(rate=0), "0 samples a second"),
        (wav()[:30], "damaged"),
        (wav().replace(b"data", b"junk"), "damaged"),
        (b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 100_000, "damaged"),
    ],
)
def test_what_can_not_be_taken_is_refused_by_a_sentence(file: bytes, why: str) -> None:
    with pytest.raises(BadSound, match=why):
        recording_of(file, is_raw=False)


@given(st.binary(max_size=200), st.integers(0, 200), st.booleans())
def test_no_file_brings_anything_but_a_refusal(noise: bytes, at: int, is_raw: bool) -> None:  # noqa: FBT001
    whole = wav(SECOND[:6400])
    try:
        recording = recording_of(whole[:at] + noise + whole[at + len(noise) :], is_raw=is_raw)
    except BadSound:
        return
    assert len(mono(recording, 16_000)) > 0


def test_channels_are_mixed_and_rates_are_brought_to_one() -> None:
    two = np.repeat(np.array([[1000, 3000]], np.int16), 44_100, axis=0)
    mixed = mono(Recording(Coding.PCM16, 44_100, 2, two.tobytes()), 16_000)
    assert len(mixed) == 16_000
    assert np.all(abs(mixed[1000:-1000] - 2000) < 2)


@pytest.mark.parametrize(
    ("coding", "codes", "values"),
    [
        (Coding.MULAW, [0x00, 0x80, 0xFF, 0x7F, 0x6F], [-32124, 32124, 0, 0, -132]),
        (Coding.ALAW, [0xD5, 0x55, 0xAA, 0x2A], [8, -8, 32256, -32256]),
    ],
)
def test_codes_of_g711_have_the_values_of_the_standard(
    coding: Coding, codes: list[int], values: list[int]
) -> None:
    reported = mono(Recording(coding, 16_000, 1, bytes(codes)), 16_000)
    assert reported.tolist() == values


def test_a_stream_is_resampled_to_what_the_whole_would_be() -> None:
    tone = (np.sin(np.arange(22_050) / 8) * 9000).astype("<i2").tobytes()
    resampler = Resampler(22_050, 24_000)
    parts = [resampler.part(tone[at : at + 1000]) for at in range(0, len(tone), 1000)]
    whole = Resampler(22_050, 24_000).part(tone, is_last=True)
    joined = b"".join(parts) + resampler.part(b"", is_last=True)
    assert len(joined) == len(whole) == 48_000
    assert np.max(np.abs(np.frombuffer(joined, "<i2") - np.frombuffer(whole, "<i2").astype(int))) <= 4
