"""From a body to what is to be spoken. Pure; whatever is refused is refused by the field's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from connections.audio.transcription_request import check_model
from connections.audio.wire import SpeechRequest
from connections.openai.problems import invalid
from connections.wire.sentences import complaint
from speech.voice.espeak import FASTEST, SLOWEST

MODEL = "espeak-ng"
_decode = msgspec.json.Decoder(SpeechRequest).decode


class Spoken(msgspec.Struct, frozen=True):
    """A text, and how it is to be spoken."""

    text: str
    voice: str
    speed: float
    format: Literal["wav", "pcm"]


def speech_request(body: bytes, *, voices: Sequence[str], most_chars: int) -> Spoken:
    """Return what a body asks. Raises Problem."""
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        wrong = complaint(error)
        raise invalid(wrong.field, wrong.told(whole="The request")) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid(None, "The request is no JSON.") from None
    check_model(request.model, MODEL)
    _check_text(request, most_chars)
    return Spoken(request.input, _voice(request, voices), _speed(request), _format(request))


def _check_text(request: SpeechRequest, most_chars: int) -> None:
    if not request.input.strip():
        raise invalid("input", "`input` is empty: there is nothing to speak.")
    if len(request.input) > most_chars:
        why = f"`input` is too long: it has {len(request.input):,} characters, and may have {most_chars:,}."
        raise invalid("input", why, code="content_too_long")
    if request.instructions:
        why = "The voice of this server follows no `instructions`."
        raise invalid("instructions", why, code="unsupported_parameter")


def _voice(request: SpeechRequest, voices: Sequence[str]) -> str:
    if request.voice not in voices:
        english = ", ".join(voice for voice in voices if voice.startswith("en-"))
        why = f"This server has no such voice. It has {english}, and of other languages de, fr and so on."
        raise invalid("voice", why)
    return request.voice


def _speed(request: SpeechRequest) -> float:
    speed = 1.0 if request.speed is None else request.speed
    if not SLOWEST <= speed <= FASTEST:
        raise invalid("speed", f"`speed` must be from {SLOWEST} to {FASTEST}.")
    return speed


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
