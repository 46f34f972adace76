"""From a form to what is to be recognised. Pure; whatever is refused is refused by the field's name."""

from __future__ import annotations

from typing import Literal, cast, get_args

import msgspec

from connections.audio.multipart import File, Form
from connections.openai.problems import Problem, invalid
from connections.wire.errors import shorten
from speech.errors import BadSound
from speech.sound.wav import Recording, recording_of

MODEL = "pocketsphinx"
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["word", "segment"]
_RAW_TYPES = {"audio/pcm", "audio/l16"}
_RAW_NAMES = (".pcm", ".raw")
_SWITCH = {"true": True, "1": True, "false": False, "0": False, "": False}


class TranscriptionRequest(msgspec.Struct, frozen=True):
    """A recording, and in which form its words are wanted."""

    recording: Recording
    format: Format
    granularities: tuple[Granularity, ...]
    is_streamed: bool


def transcription_request(form: Form, *, longest_s: int) -> TranscriptionRequest:
    """Return what a form asks. Raises Problem."""
    check_model(_value(form, "model"), MODEL)
    _check_language(_value(form, "language"))
    wanted = _format(_value(form, "response_format"))
    streamed = _SWITCH.get((_value(form, "stream") or "").lower())
    if streamed is None:
        raise invalid("stream", "`stream` must be true or false.")
    if streamed and wanted not in {"json", "text"}:
        raise invalid("stream", "A stream of words has no times: use `response_format` json with `stream`.")
    granularities = _granularities(form, wanted)
    return TranscriptionRequest(_recording(form, longest_s), wanted, granularities, streamed)


def check_model(name: str | None, served: str) -> None:
    """Raise Problem for any other model than the one that is there."""
    if name is None:
        raise invalid("model", f"`model` is missing. This server has {served} here.")
    if name != served:
        why = f'This server has "{served}" here, and no model "{shorten(name)}".'
        raise Problem(404, why, code="model_not_found", param="model")


def _value(form: Form, name: str) -> str | None:
    values = form.values.get(name)
    return values[-1] if values else None


def _check_language(language: str | None) -> None:
    if language and language.lower().replace("_", "-").partition("-")[0] not in {"en", "english"}:
        raise invalid("language", "The recognizer of this server understands English only: use `en`.")


def _format(name: str | None) -> Format:
    if not name:
        return "json"
    if name not in get_args(Format):
        raise invalid("response_format", f"`response_format` must be one of {', '.join(get_args(Format))}.")
    return cast("Format", name)


def _granularities(form: Form, wanted: Format) -> tuple[Granularity, ...]:
    told = form.values.get("timestamp_granularities", [])
    if told and wanted != "verbose_json":
        why = "`timestamp_granularities` needs `response_format` verbose_json."
        raise invalid("timestamp_granularities", why)
    if not set(told) <= set(get_args(Granularity)):
        raise invalid("timestamp_granularities", "`timestamp_granularities` may have word and segment.")
    return tuple(cast("list[Granularity]", told)) or ("segment",)


def _recording(form: Form, longest_s: int) -> Recording:
    if (file := form.files.get("file")) is None:
        raise invalid("file", "`file` is missing: it is the recording.")
    try:
        recording = recording_of(file.content, is_raw=_is_raw(file))
    except BadSound as refused:
        raise invalid("file", str(refused)) from None
    if recording.seconds > longest_s:
        why = (
            f"The recording is too long: it has {recording.seconds:,.0f} seconds, and may have {longest_s:,}."
        )
        raise invalid("file", why, code="content_too_long")
    return recording


def _is_raw(file: File) -> bool:
    return file.media_type in _RAW_TYPES or file.name.lower().endswith(_RAW_NAMES)
