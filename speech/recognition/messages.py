"""What the gateway and a recognizer's process tell each other, and how it goes over their socket.

`Cancel`, `Working`, `Refused`, `Finished` and `Failed` are what a voice's process says, too.
"""

from __future__ import annotations

import struct

import msgspec

from speech.sound.wav import Recording

LENGTH = struct.Struct(">I")


class Word(msgspec.Struct, frozen=True):
    """A word and when it is said, in seconds of the recording."""

    word: str
    start: float
    end: float


class Segment(msgspec.Struct, frozen=True):
    """What was said between two pauses, or in a window of sound, in seconds of the recording.

    `language`: its code, where the recognizer knows it.
    """

    start: float
    end: float
    text: str
    words: tuple[Word, ...]
    language: str | None = None


class Transcribe(msgspec.Struct, frozen=True, tag=True):
    """Recognise a recording. `owner`: those of one owner wait for each other. `language`: a code; None: whichever it is."""

    number: int
    owner: str
    recording: Recording
    language: str | None = None
    wants_words: bool = True


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for it any more."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Recordings are taken from now on.

    `languages`: names by their codes, as far as one can be asked for. `language`: the code of the only one.
    `times_words`: whether words have times.
    """

    languages: dict[str, str]
    language: str | None = None
    times_words: bool = True


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The process can't serve, and ends. `why`: for the operator."""

    why: str


class Working(msgspec.Struct, frozen=True, tag=True):
    """The next piece, or the next step of one, is being worked at."""


class Heard(msgspec.Struct, frozen=True, tag=True):
    """A segment of a recording, in order."""

    number: int
    segment: Segment


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The recording is over."""

    number: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It can't be done. `why`: for its sender."""

    number: int
    why: str


ToRecognizer = Transcribe | Cancel
FromRecognizer = Ready | Working | Heard | Finished | Failed | Refused


def pack(message: msgspec.Struct) -> bytes:
    """Return a message as it goes over the socket: four bytes of length, big-endian, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
