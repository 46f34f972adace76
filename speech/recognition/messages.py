"""Messages between the gateway and a recognizer's process."""

from __future__ import annotations

import msgspec

from speech.process.messages import Cancel, Failed, Refused, Working
from speech.sound.wav import Recording


class Word(msgspec.Struct, frozen=True):
    """A word and its time, in seconds of the recording."""

    word: str
    start: float
    end: float


class Segment(msgspec.Struct, frozen=True):
    """The words between two pauses, or in a window of sound, in seconds of the recording.

    `language`: its code, if the recognizer knows it.
    """

    start: float
    end: float
    text: str
    words: tuple[Word, ...]
    language: str | None = None


class Transcribe(msgspec.Struct, frozen=True, tag=True):
    """Recognize a recording. `owner`: one owner's recordings wait for each other. `language`: a code; None: any."""

    number: int
    owner: str
    recording: Recording
    language: str | None = None
    wants_words: bool = True


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Recordings are accepted from now on.

    `languages`: names by code, as far as they can be requested. `language`: the code of the only one.
    `times_words`: whether words have times.
    """

    languages: dict[str, str]
    language: str | None = None
    times_words: bool = True


ENGLISH = Ready(languages={"en": "english"}, language="en")
"""PocketSphinx's facts."""


class SegmentRecognized(msgspec.Struct, frozen=True, tag=True):
    """A segment of a recording, in order."""

    number: int
    segment: Segment


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All of the recording is recognized."""

    number: int


ToRecognizer = Transcribe | Cancel
FromRecognizer = Ready | Working | SegmentRecognized | Finished | Failed | Refused
