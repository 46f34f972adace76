"""The sound of uploaded files. Usual WAV files are read here, and all else is decoded by PyAV (FFmpeg) outside of the gateway.

FFmpeg parses whatever a client sends. So each file gets a process of its own, with limits on memory, processor and wall time: a
file that crashes or hangs its process fails alone.
"""

from __future__ import annotations

import asyncio
import struct
from importlib.util import find_spec

import msgspec

from engine.errors import install_command
from speech.errors import BadSound, RecognizerLost, TooMuchSound
from speech.interfaces import HIGHEST_RATE, LOWEST_RATE, RAW_RATE, WIDTH, Recording
from speech.process import running_child

SHORTEST_S = 0.1
_LEAST_PATIENCE_S, _SLOWEST = 30.0, 20
"""How long one file may take: the first, and a second per `_SLOWEST` seconds of sound, ten times what a busy core takes."""
_NOT_SOUND = (
    "The file is not a kind of sound that this server takes. Send a WAV, MP3, WebM, Ogg, FLAC or M4A file, or 16-bit PCM at "
    "24,000 Hz named *.pcm."
)
_MAGIC = {b"RIFF": "wav", b"\x1aE\xdf\xa3": "matroska", b"OggS": "ogg", b"fLaC": "flac", b"ID3": "mp3"}
"""The first bytes of files: WebM is Matroska, as MP4 and M4A are QuickTime's `mov`."""


async def recording_in(
    file: bytes, *, is_raw: bool, longest_s: int, patience_s: float | None = None
) -> Recording:
    """Return the sound in a file. `is_raw`: it is PCM without a header; `longest_s`: the most seconds of sound.

    `patience_s`: seconds that decoding may take. Raises BadSound, TooMuchSound, RecognizerLost.
    """
    if not file:
        raise BadSound("The file is empty.")
    recording = Recording(RAW_RATE, 1, _whole(file, WIDTH)) if is_raw else wav_recording(file)
    if recording is None:
        patience_s = _LEAST_PATIENCE_S + longest_s / _SLOWEST if patience_s is None else patience_s
        recording = await _decoded(Decode(file, container_of(file), longest_s, patience_s))
    if recording.seconds > longest_s:
        why = f"it has {recording.seconds:,.0f} seconds, and may have {longest_s:,}"
        raise TooMuchSound(f"The recording is too long: {why}.")
    if recording.seconds < SHORTEST_S:
        raise BadSound(f"The sound is too short: it must last {SHORTEST_S} seconds or more.")
    return recording


def container_of(file: bytes) -> str:
    """Return FFmpeg's name for the container of a file, by its first bytes. Raises BadSound if it is not supported."""
    if file[4:8] == b"ftyp":
        return "mov"
    if file[:1] == b"\xff" and file[1:2] >= b"\xe0":  # the sync word of MPEG audio; ADTS has layer 0
        return "mp3" if file[1] & 0x06 else "aac"
    for magic, container in _MAGIC.items():
        if file.startswith(magic):
            return container
    raise BadSound(_NOT_SOUND)


async def _decoded(request: Decode) -> Recording:
    if find_spec("av") is None:
        raise BadSound(
            "This server can't decode files of this kind: send a WAV file with 16-bit PCM. "
            f"Its operator installs the decoder by: {install_command('speech')}"
        )
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


_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
"""A WAV file's header without optional chunks: RIFF, size, WAVE, `fmt `, its size and six fields, `data`, size."""
_UNKNOWN = 0xFFFFFFFF
"""The length in a header that is sent before the length is known."""


def header(rate: int) -> bytes:
    """Return the header of 16-bit PCM with one channel and unknown length."""
    sample_format = (b"fmt ", 16, 1, 1, rate, rate * WIDTH, WIDTH, 8 * WIDTH)
    return _HEADER.pack(b"RIFF", _UNKNOWN, b"WAVE", *sample_format, b"data", _UNKNOWN)


def wav_recording(file: bytes) -> Recording | None:
    """Return the sound of a WAV file with 16-bit PCM and no optional chunks; None if the file is another kind.

    The header's sizes are only trusted as far as the bytes go.
    """
    if len(file) < _HEADER.size:
        return None
    riff, _, wave, fmt, length, tag, channels, rate, _, _, bits, data, size = _HEADER.unpack_from(file)
    is_usual = (riff, wave, fmt, length, tag, bits, data) == (b"RIFF", b"WAVE", b"fmt ", 16, 1, 16, b"data")
    if not is_usual or channels not in {1, 2} or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        return None
    return Recording(rate, channels, _whole(file[_HEADER.size :][:size], WIDTH * channels))


def _whole(samples: bytes, width: int) -> bytes:
    """Return the samples without a part of one at the end."""
    return samples[: len(samples) - len(samples) % width]
