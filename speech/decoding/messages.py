"""Messages between the gateway and the process that decodes one recording."""

from __future__ import annotations

import msgspec

from speech.sound.wav import Recording


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
