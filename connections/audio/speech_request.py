"""Converts a body to a text to speak. Pure; a refusal names the field."""

from __future__ import annotations

from typing import Literal

import msgspec

from connections.audio.transcription_request import check_model
from connections.audio.wire import SpeechRequest
from connections.http.json_shape import check_shape
from connections.openai.problems import invalid
from connections.wire.sentences import complaint
from speech.voice.speaker import Speaker

_decode = msgspec.json.Decoder(SpeechRequest).decode


class Spoken(msgspec.Struct, frozen=True):
    """A text, and how to speak it."""

    text: str
    voice: str
    speed: float
    format: Literal["wav", "pcm"]


def speech_request(body: bytes, *, speaker: Speaker, most_chars: int) -> Spoken:
    """Return what a body requests of this server's voice. Raises Problem, TooManyValues."""
    check_shape(body)
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        wrong = complaint(error)
        raise invalid(wrong.field, wrong.told(whole="The request")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid(None, "The request is not JSON.") from None
    check_model(request.model, speaker.name)
    _check_text(request, most_chars)
    return Spoken(request.input, _voice(request, speaker), _speed(request, speaker), _format(request))


def _check_text(request: SpeechRequest, most_chars: int) -> None:
    if not request.input.strip():
        raise invalid("input", "`input` is empty: there is nothing to speak.")
    if len(request.input) > most_chars:
        why = f"`input` is too long: it has {len(request.input):,} characters, and may have {most_chars:,}."
        raise invalid("input", why, code="content_too_long")
    if request.instructions:
        why = "The voice of this server does not follow `instructions`."
        raise invalid("instructions", why, code="unsupported_parameter")


def _voice(request: SpeechRequest, speaker: Speaker) -> str:
    if request.voice not in speaker.voices:
        raise invalid("voice", f"This server has no such voice. It has {speaker.examples}.")
    return request.voice


def _speed(request: SpeechRequest, speaker: Speaker) -> float:
    speed = 1.0 if request.speed is None else request.speed
    slowest, fastest = speaker.speeds
    if slowest <= speed <= fastest:
        return speed
    if slowest == fastest:
        raise invalid("speed", "This model speaks at one `speed` only: leave it out.")
    raise invalid("speed", f"`speed` must be from {slowest} to {fastest}.")


def _format(request: SpeechRequest) -> Literal["wav", "pcm"]:
    if request.stream_format not in {None, "audio"}:
        raise invalid("stream_format", "This server sends sound as it is: use `stream_format` audio.")
    match request.response_format:
        case None | "wav":
            return "wav"
        case "pcm":
            return "pcm"
        case _:
            raise invalid("response_format", "This server speaks as wav or pcm: name one of them.")
