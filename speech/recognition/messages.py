"""What the gateway and the recognizer's process tell each other, and how it goes over their socket."""

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
    """What was said between two pauses, in seconds of the recording."""

    start: float
    end: float
    text: str
    words: tuple[Word, ...]


class Transcribe(msgspec.Struct, frozen=True, tag=True):
    """Recognise a recording. `owner`: those of one owner wait for each other."""

    number: int
    owner: str
    recording: Recording


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for it any more."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Recordings are taken from now on."""


class Working(msgspec.Struct, frozen=True, tag=True):
    """The next piece is being recognised."""


class Heard(msgspec.Struct, frozen=True, tag=True):
    """A segment of a recording, in order."""

    number: int
    segment: Segment


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The recording is over."""

    number: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The recording can't be recognised, by a defect."""

    number: int


ToRecognizer = Transcribe | Cancel
FromRecognizer = Ready | Working | Heard | Finished | Failed


def pack(message: ToRecognizer | FromRecognizer) -> bytes:
    """Return a message as it goes over the socket: four bytes of length, big-endian, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
