"""OpenAI's requests and answers for sound, as far as supported (API reference: Audio). Only types, with its names."""

from __future__ import annotations

from typing import Literal

import msgspec

from speech.recognition.messages import Word


class Duration(msgspec.Struct, frozen=True, tag_field="type", tag="duration"):
    """The usage of a recording: its seconds."""

    seconds: float


class Transcription(msgspec.Struct, frozen=True):
    """The words of a recording."""

    text: str
    usage: Duration


class TimedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The words between two pauses; times in seconds. Values that this recognizer does not know are 0 or empty."""

    id: int
    start: float
    end: float
    text: str
    seek: int = 0
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0


class VerboseTranscription(msgspec.Struct, frozen=True, kw_only=True):
    """The words of a recording with their times. `words`, `segments`: if requested."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    words: tuple[Word, ...] | None = None
    segments: tuple[TimedSegment, ...] | None = None
    usage: Duration


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    """More of the text, in a stream."""

    delta: str


class TextDone(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    """The whole text, at the end of a stream."""

    text: str
    usage: Duration


class SpeechUsage(msgspec.Struct, frozen=True):
    """Tokens of a spoken text, all 0: voices here count none."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class AudioDelta(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.delta"):
    """More of the sound, in a stream of events. Together, the decoded parts are the file."""

    audio: bytes


class AudioDone(msgspec.Struct, frozen=True, tag_field="type", tag="speech.audio.done"):
    """The end of the sound, in a stream of events."""

    usage: SpeechUsage = SpeechUsage()


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to speak, and how."""

    input: str
    voice: str
    model: str | None = None
    response_format: str | None = None
    speed: float | None = None
    instructions: str | None = None
    stream_format: str | None = None
