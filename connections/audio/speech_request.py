"""Converts a body to a text to speak. Pure; a refusal names the field."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, cast, get_args

import msgspec

from connections.api.errors import invalid
from connections.api.fields import VOICES
from connections.audio.schemas import SpeechRequest
from connections.audio.transcription_request import check_model
from connections.http.json_limits import check_json_limits
from connections.protocol.errors import validation_problem
from speech.voice.synthesizer import Synthesizer

Format = Literal["wav", "pcm", "mp3", "opus", "aac", "flac"]
UNCOMPRESSED = frozenset(("wav", "pcm"))
_decode = msgspec.json.Decoder(SpeechRequest).decode
SPEECH_MODELS = frozenset(("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"))


class SynthesisRequest(msgspec.Struct, frozen=True):
    """A text, and how to speak it. `has_events`: the sound is sent as server-sent events. `ignored`: names of fields."""

    text: str
    voice: str
    speed: float
    format: Format
    has_events: bool
    ignored: tuple[str, ...]


def speech_request(body: bytes, *, speaker: Synthesizer, most_chars: int) -> SynthesisRequest:
    """Return what a body requests of this server's voice. Raises Problem, TooManyValues."""
    check_json_limits(body)
    try:
        request = _decode(body)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        raise invalid(wrong.field, wrong.full_message(whole="The request")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid(None, "The request is not JSON.") from None
    check_model(request.model, speaker.name, SPEECH_MODELS)
    _check_text(request, most_chars)
    return SynthesisRequest(
        text=request.input,
        voice=_voice(request, speaker),
        speed=_speed(request, speaker),
        format=_format(request),
        has_events=_has_events(request),
        ignored=("instructions",) if request.instructions else (),
    )


def _check_text(request: SpeechRequest, most_chars: int) -> None:
    if not request.input.strip():
        raise invalid("input", "`input` is empty: there is nothing to speak.")
    if len(request.input) > most_chars:
        why = f"`input` is too long: it has {len(request.input):,} characters, and may have {most_chars:,}."
        raise invalid("input", why, code="content_too_long")


def _voice(request: SpeechRequest, speaker: Synthesizer) -> str:
    if request.voice in speaker.voices:
        return request.voice
    if request.voice in VOICES:
        return speaker.voices[0]
    raise invalid("voice", f"This server has no such voice. It has {speaker.examples}.")


def _speed(request: SpeechRequest, speaker: Synthesizer) -> float:
    speed = 1.0 if request.speed is None else request.speed
    slowest, fastest = speaker.speeds
    if slowest <= speed <= fastest:
        return speed
    if slowest == fastest:
        raise invalid("speed", "This model speaks at one `speed` only: leave it out.")
    raise invalid("speed", f"`speed` must be from {slowest} to {fastest}.")


def _has_events(request: SpeechRequest) -> bool:
    if request.stream_format not in {None, "audio", "sse"}:
        raise invalid("stream_format", "`stream_format` must be audio or sse.")
    return request.stream_format == "sse"


def _format(request: SpeechRequest) -> Format:
    """Return the requested format: by default OpenAI's, MP3, or WAV where no encoder is installed. Raises Problem."""
    can_compress = find_spec("av") is not None
    name = request.response_format or ("mp3" if can_compress else "wav")
    if name not in get_args(Format):
        raise invalid("response_format", f"`response_format` must be one of {', '.join(get_args(Format))}.")
    if name not in UNCOMPRESSED and not can_compress:
        why = (
            f"This server can't make {name}: use `response_format` wav or pcm. "
            "Its operator installs the encoder by: pip install 'midstream-server[audio]'"
        )
        raise invalid("response_format", why)
    return cast("Format", name)
