"""The sound of uploaded files. WAV headers are read here, and all else is decoded by PyAV (FFmpeg) outside of the gateway.

FFmpeg parses whatever a client sends. So each file gets a process of its own, with limits on memory, processor and wall time: a
file that crashes or hangs its process fails alone. Of a WAV header (RIFF; Microsoft's mmreg.h has the tags), sizes are only
trusted as far as the bytes go.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from importlib.util import find_spec

import msgspec

from engine.errors import install_command
from speech.errors import BadSound, RecognizerLost, TooMuchSound
from speech.interfaces import HIGHEST_RATE, LOWEST_RATE, RAW_RATE, Coding, Recording
from speech.process import running_child

SHORTEST_S = 0.1
_LEAST_PATIENCE_S, _SLOWEST = 30.0, 20
"""How long one file may take: the first, and a second per `_SLOWEST` seconds of sound, ten times what a busy core takes."""
OTHER_FORMATS = (
    "Send a WAV file (16-bit PCM, µ-law or A-law), MP3, WebM, Ogg, FLAC or M4A, or 16-bit PCM at 24,000 Hz "
    "named *.pcm."
)
_MAGIC = {b"\x1aE\xdf\xa3": "matroska", b"OggS": "ogg", b"fLaC": "flac", b"ID3": "mp3"}
"""The first bytes of files: WebM is Matroska, as MP4 and M4A are QuickTime's `mov`."""


async def recording_in(
    file: bytes, *, is_raw: bool, longest_s: int, patience_s: float | None = None
) -> Recording:
    """Return the sound in a file. `is_raw`: it is PCM without a header; `longest_s`: the most seconds of sound.

    `patience_s`: seconds that decoding may take. Raises BadSound, TooMuchSound, RecognizerLost.
    """
    container = None if is_raw else container_of(file)
    if container is None:
        recording = recording_of(file, is_raw=is_raw)
    elif find_spec("av") is None:
        raise BadSound(
            "This server can't decode MP3, WebM, Ogg, FLAC or M4A: send a WAV file (16-bit PCM, µ-law or A-law). "
            f"Its operator installs the decoder by: {install_command('speech')}"
        )
    else:
        patience_s = _LEAST_PATIENCE_S + longest_s / _SLOWEST if patience_s is None else patience_s
        recording = await _decoded(Decode(file, container, longest_s, patience_s))
    if recording.seconds > longest_s:
        why = f"it has {recording.seconds:,.0f} seconds, and may have {longest_s:,}"
        raise TooMuchSound(f"The recording is too long: {why}.")
    if recording.seconds < SHORTEST_S:
        raise BadSound(f"The sound is too short: it must last {SHORTEST_S} seconds or more.")
    return recording


def container_of(file: bytes) -> str | None:
    """Return FFmpeg's name for the container of a file, by its first bytes; None if it has no decoder here."""
    if file[4:8] == b"ftyp":
        return "mov"
    if file[:1] == b"\xff" and file[1:2] >= b"\xe0":  # the sync word of MPEG audio; ADTS has layer 0
        return "mp3" if file[1] & 0x06 else "aac"
    return next((container for magic, container in _MAGIC.items() if file.startswith(magic)), None)


async def _decoded(request: Decode) -> Recording:
    try:
        async with (
            asyncio.timeout(request.patience_s),
            running_child(str(__package__), "decoding") as process,
        ):
            process.send(request)
            async for body in process.bodies():
                answer = _decode(body)
                if isinstance(answer, Decoded):
                    return answer.recording
                raise TooMuchSound(answer.why) if answer.is_too_long else BadSound(answer.why)
    except TimeoutError:
        raise BadSound("The file takes too long to decode. Send it as a WAV file.") from None
    except OSError:
        raise RecognizerLost("The decoder could not be started. Try again in a moment.") from None
    raise BadSound("The file could not be decoded: it is damaged, or needs too much memory or time.")


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Decode a file. `container`: the name of FFmpeg's demuxer; `longest_s`: the most seconds of sound.

    `patience_s`: seconds that this may take.
    """

    file: bytes
    container: str
    longest_s: int
    patience_s: float


class Decoded(msgspec.Struct, frozen=True, tag=True):
    """The sound of the file."""

    recording: Recording


class Undecodable(msgspec.Struct, frozen=True, tag=True):
    """The file is refused. `why`: for its sender."""

    why: str
    is_too_long: bool = False


FromDecoder = Decoded | Undecodable
_decode = msgspec.msgpack.Decoder(FromDecoder).decode


_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")
_EXTENSIBLE = 0xFFFE
_SUBFORMAT = slice(24, 26)
_MOST_CHUNKS = 64
_UNKNOWN = 0xFFFFFFFF
"""The length in a header that is sent before the length is known."""
_CODINGS = {(1, 16): Coding.PCM16, (6, 8): Coding.ALAW, (7, 8): Coding.MULAW}


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
        raise BadSound(f"The WAV file says that it has {channels} channels; one or two are supported.")
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise BadSound(
            f"The WAV file says that it has {rate:,} samples a second; {LOWEST_RATE:,} to {HIGHEST_RATE:,} are taken."
        )
    return coding, rate, channels


def _whole(samples: bytes, width: int) -> bytes:
    """Return the samples without a part of one at the end."""
    return samples[: len(samples) - len(samples) % width]
