"""Converts a form to a recording to transcribe. Pure; a refusal names the field."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal, cast, get_args

import msgspec

from connections.api.errors import Problem, invalid
from connections.audio.multipart import File, Form
from connections.protocol.errors import shorten
from speech.recognition.messages import Ready

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["word", "segment"]
_RAW_TYPES = {"audio/pcm", "audio/l16"}
_RAW_NAMES = (".pcm", ".raw")
_SWITCH = {"true": True, "1": True, "false": False, "0": False, "": False}
TRANSCRIPTION_MODELS = frozenset(
    (
        *("whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
        "gpt-4o-mini-transcribe-2025-12-15",
    )
)


class TranscriptionRequest(msgspec.Struct, frozen=True):
    """A file, and the requested format. `is_raw`: it has no header. `language`: its code; None: any."""

    file: bytes
    is_raw: bool
    language: str | None
    format: Format
    granularities: tuple[Granularity, ...]
    is_streamed: bool


def transcription_request(form: Form, *, model: str, facts: Ready) -> TranscriptionRequest:
    """Return what a form requests of the model of this name, with these facts. Raises Problem."""
    check_model(_value(form, "model"), model, TRANSCRIPTION_MODELS)
    language = _language(_value(form, "language"), facts)
    wanted = _format(_value(form, "response_format"))
    streamed = _SWITCH.get((_value(form, "stream") or "").lower())
    if streamed is None:
        raise invalid("stream", "`stream` must be true or false.")
    if streamed and wanted not in {"json", "text"}:
        raise invalid("stream", "A stream of words has no times: use `response_format` json with `stream`.")
    granularities = _granularities(form, wanted, facts)
    if (file := form.files.get("file")) is None:
        raise invalid("file", "`file` is missing: it is the recording.")
    return TranscriptionRequest(file.content, _is_raw(file), language, wanted, granularities, streamed)


def check_model(name: str | None, served: str, aliases: AbstractSet[str]) -> None:
    """Raise Problem for any model but the served one, which has these other names; an empty one is Open WebUI's default."""
    if name is None:
        raise invalid("model", f"`model` is missing. This server has {served} here.")
    if name not in {"", served} | aliases:
        why = f'This server has "{served}" here, and no model "{shorten(name)}".'
        raise Problem(404, why, code="model_not_found", param="model")


def _value(form: Form, name: str) -> str | None:
    values = form.values.get(name)
    return values[-1] if values else None


def _language(requested: str | None, facts: Ready) -> str | None:
    """Return the code of a language, given by its code, a code with a region, or its English name."""
    if not requested:
        return facts.language
    name = requested.lower().replace("_", "-").partition("-")[0]
    if not facts.languages:
        return name  # the recognizer has one, and does not say which
    codes = {name: code for code, name in facts.languages.items()}
    code = name if name in facts.languages else codes.get(requested.lower())
    if code is not None:
        return code
    if facts.language is not None:
        only = facts.languages[facts.language].capitalize()
        raise invalid(
            "language", f"The recognizer of this server understands {only} only: use `{facts.language}`."
        )
    why = f"The recognizer of this server does not understand this language. It has {', '.join(facts.languages)}."
    raise invalid("language", why)


def _format(name: str | None) -> Format:
    if not name:
        return "json"
    if name not in get_args(Format):
        raise invalid("response_format", f"`response_format` must be one of {', '.join(get_args(Format))}.")
    return cast("Format", name)


def _granularities(form: Form, wanted: Format, facts: Ready) -> tuple[Granularity, ...]:
    requested = form.values.get("timestamp_granularities", [])
    if requested and wanted != "verbose_json":
        why = "`timestamp_granularities` needs `response_format` verbose_json."
        raise invalid("timestamp_granularities", why)
    if not set(requested) <= set(get_args(Granularity)):
        raise invalid("timestamp_granularities", "`timestamp_granularities` may have word and segment.")
    if "word" in requested and not facts.times_words:
        raise invalid("timestamp_granularities", "This model does not give the times of words: use segment.")
    return tuple(cast("list[Granularity]", requested)) or ("segment",)


def _is_raw(file: File) -> bool:
    return file.media_type in _RAW_TYPES or file.name.lower().endswith(_RAW_NAMES)
