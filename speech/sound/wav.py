"""Reads the header of a WAV file, and makes one (RIFF; Microsoft's mmreg.h has the tags). Pure.

A header's sizes are only trusted as far as the bytes go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from speech.errors import BadSound

RAW_RATE = 24_000
"""Samples per second of sound without a header."""
LOWEST_RATE, HIGHEST_RATE = 8_000, 48_000
SHORTEST_S = 0.1
_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")
_EXTENSIBLE = 0xFFFE
_SUBFORMAT = slice(24, 26)
_MOST_CHUNKS = 64
_UNKNOWN = 0xFFFFFFFF
"""The length in a header that is sent before the length is known."""

OTHER_FORMATS = (
    "Send a WAV file (16-bit PCM, µ-law or A-law), MP3, WebM, Ogg, FLAC or M4A, or 16-bit PCM at 24,000 Hz "
    "named *.pcm."
)


class Coding(StrEnum):
    """The encoding of a sample."""

    PCM16 = "pcm16"
    MULAW = "mulaw"
    ALAW = "alaw"


_CODINGS = {(1, 16): Coding.PCM16, (6, 8): Coding.ALAW, (7, 8): Coding.MULAW}


class Recording(msgspec.Struct, frozen=True):
    """Samples as received; channels alternate."""

    coding: Coding
    rate: int
    channels: int
    samples: bytes

    @property
    def seconds(self) -> float:
        """Its duration in seconds."""
        width = 2 if self.coding is Coding.PCM16 else 1
        return len(self.samples) / (width * self.channels * self.rate)


def recording_of(file: bytes, *, is_raw: bool) -> Recording:
    """Return the sound in a file. `is_raw`: it has no header. Raises BadSound."""
    if not file:
        raise BadSound("The file is empty.")
    recording = Recording(Coding.PCM16, RAW_RATE, 1, _whole(file, 2)) if is_raw else _wav(file)
    if recording.seconds < SHORTEST_S:
        raise BadSound(f"The sound is too short: it must last {SHORTEST_S} seconds or more.")
    return recording


def header(rate: int) -> bytes:
    """Return the header of 16-bit PCM with one channel and unknown length."""
    fields = _FORMAT.pack(1, 1, rate, rate * 2, 2, 16)
    return b"".join(
        (
            *(_CHUNK.pack(b"RIFF", _UNKNOWN), b"WAVE"),
            *(_CHUNK.pack(b"fmt ", len(fields)), fields),
            _CHUNK.pack(b"data", _UNKNOWN),
        )
    )


def _wav(file: bytes) -> Recording:
    if file[:4] != b"RIFF" or file[8:12] != b"WAVE":
        raise BadSound(f"The file is not a kind of sound that this server takes. {OTHER_FORMATS}")
    sample_format: tuple[Coding, int, int] | None = None
    for name, start, end in _chunks(file):
        if name == b"fmt ":
            sample_format = _format(file[start:end])
        if name == b"data":
            if sample_format is None:
                break
            coding, rate, channels = sample_format
            width = channels * (2 if coding is Coding.PCM16 else 1)
            return Recording(coding, rate, channels, _whole(file[start:end], width))
    raise BadSound("The WAV file is damaged: it has no samples where its header says.")


def _chunks(file: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the start and the end of each chunk, within the file."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        if at + _CHUNK.size > len(file):
            return
        name, claimed = _CHUNK.unpack_from(file, at)
        start = at + _CHUNK.size
        yield name, start, min(start + claimed, len(file))
        at = start + claimed + claimed % 2


def _format(fields: bytes) -> tuple[Coding, int, int]:
    if len(fields) < _FORMAT.size:
        raise BadSound("The WAV file is damaged: its header is too short.")
    tag, channels, rate, _, _, bits = _FORMAT.unpack_from(fields)
    if tag == _EXTENSIBLE:
        tag = int.from_bytes(fields[_SUBFORMAT], "little")
    if (coding := _CODINGS.get((tag, bits))) is None:
        raise BadSound(f"The WAV file has samples of a kind that is not taken. {OTHER_FORMATS}")
    if channels not in {1, 2}:
        raise BadSound(f"The WAV file says that it has {channels} channels; one or two are taken.")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise BadSound(
            f"The WAV file says that it has {rate:,} samples a second; {LOWEST_RATE:,} to {HIGHEST_RATE:,} are taken."
        )
    return coding, rate, channels


def _whole(samples: bytes, width: int) -> bytes:
    """Return the samples without a part of one at the end."""
    return samples[: len(samples) - len(samples) % width]
