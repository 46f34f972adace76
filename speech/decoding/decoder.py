"""Returns the sound of an uploaded file. All but WAV is decoded by PyAV (FFmpeg), outside of the gateway.

FFmpeg parses whatever a client sends. So each file gets a process of its own, with limits on memory, processor and wall
time: a file that crashes or hangs it fails alone.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import msgspec

from speech.errors import BadSound, RecognizerLost, TooMuchSound
from speech.process.supervisor import running_child
from speech.sound.wav import SHORTEST_S, Recording, recording_of

_LEAST_PATIENCE_S, _SLOWEST = 30.0, 20
"""How long one file may take: this, and a second for so many seconds of sound, ten times what a busy core takes."""

_WITHOUT = (
    "This server can't decode MP3, WebM, Ogg, FLAC or M4A: send a WAV file (16-bit PCM, µ-law or A-law). "
    "Its operator installs the decoder by: pip install 'midstream-server[audio]'"
)

_MAGIC = {b"\x1aE\xdf\xa3": "matroska", b"OggS": "ogg", b"fLaC": "flac", b"ID3": "mp3"}
"""The first bytes of files: WebM is Matroska, as MP4 and M4A are QuickTime's `mov`."""


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Decode a file. `container`: the name of FFmpeg's demuxer; `longest_s`: seconds of sound.

    `patience_s`: seconds that it may take.
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


async def recording_in(
    file: bytes, *, is_raw: bool, longest_s: int, patience_s: float | None = None
) -> Recording:
    """Return the sound in a file. `is_raw`: it is PCM without a header; `longest_s`: seconds of sound.

    `patience_s`: seconds that it may take. Raises BadSound, TooMuchSound, RecognizerLost.
    """
    container = None if is_raw else container_of(file)
    if container is None:
        recording = recording_of(file, is_raw=is_raw)
    elif find_spec("av") is None:
        raise BadSound(_WITHOUT)
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
        async with asyncio.timeout(request.patience_s), running_child(str(__package__)) as process:
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
