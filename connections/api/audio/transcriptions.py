"""`POST /v1/audio/transcriptions`: a recording's words, whole or as they are recognized, while its client is there.

The form (multipart/form-data, RFC 7578) is read in memory: nothing is written to disk.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from email.message import Message
from typing import Literal, cast, get_args

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.api.audio.admission import AudioAdmission, check_model, speech_unavailable
from connections.api.errors import Problem, invalid
from connections.http.exchange import Exchange
from sessions.limits.shares import Subject
from speech.decoding.decoder import recording_in
from speech.errors import BadSound, RecognizerLost, TooMuchSound
from speech.recognition.messages import Ready, Segment, Word
from speech.recognition.recognizer import Recognizer
from speech.sound.wav import Recording

MAX_FORM_BYTES = 25 * 1024 * 1024
"""Bytes of a form; OpenAI's limit."""
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
_MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "text/plain",
    "vtt": "text/vtt",
}
MAX_FIELDS = 32
_MAX_HEAD_BYTES = 4096
_MAX_VALUE_BYTES = 64 * 1024
"""Bytes of a field that is not a file."""
_MAX_PARAMETERS = 16
"""Of one header: before each, the library that reads them scans all again."""
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")
_BROKEN = "The form is damaged: it must be multipart/form-data as RFC 7578 describes it."


class TranscriptionsEndpoint:
    """Answers requests."""

    def __init__(self, recognizer: Recognizer, admission: AudioAdmission, *, longest_s: int) -> None:
        """`longest_s`: seconds of a recording."""
        self._recognizer = recognizer
        self._admission = admission
        self._longest_s = longest_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        await self._admission.serve(exchange, self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request. Raises Refused, SpeechError, ClientDisconnect."""
        async with self._admission.admitted(exchange) as caller:
            body = await exchange.body(lambda: None, most=MAX_FORM_BYTES)
            form = parse_form(body, exchange.request.headers.get("content-type", ""))
            del body
            request = transcription_request(form, model=self._recognizer.name, facts=self._recognizer.facts)
            del form
            work = self._answer(exchange, caller.subject, request)
            await self._admission.run_while_valid(exchange, caller, work)

    async def _answer(self, exchange: Exchange, subject: Subject, request: TranscriptionRequest) -> None:
        recording = await self._recording(request)
        heard = self._recognizer.transcribe(
            recording,
            owner=subject.owner,
            language=request.language,
            wants_words="word" in request.granularities,
        )
        async with aclosing(heard) as segments:
            if request.is_streamed:
                await _stream(exchange, segments, recording.seconds)
            else:
                await _whole(exchange, segments, request, recording.seconds, self._recognizer.facts.languages)

    async def _recording(self, request: TranscriptionRequest) -> Recording:
        """Raises Problem, RecognizerLost."""
        try:
            return await recording_in(request.file, is_raw=request.is_raw, longest_s=self._longest_s)
        except TooMuchSound as refused:
            raise invalid("file", str(refused), code="content_too_long") from None
        except BadSound as refused:
            raise invalid("file", str(refused)) from None


async def _whole(
    exchange: Exchange,
    segments: AsyncIterator[Segment],
    request: TranscriptionRequest,
    seconds: float,
    languages: Mapping[str, str],
) -> None:
    heard = [segment async for segment in segments]
    code = next((segment.language for segment in heard if segment.language), request.language)
    language = "unknown" if code is None else languages.get(code, code)
    body = transcript(heard, seconds, request.format, request.granularities, language)
    headers = {"Cache-Control": "no-store"}
    await exchange.answer(Response(body, headers=headers, media_type=media_type(request.format)))


async def _stream(exchange: Exchange, segments: AsyncIterator[Segment], seconds: float) -> None:
    heard: list[Segment] = []
    try:
        async for segment in segments:
            if not exchange.begun:
                await exchange.begin_events(secrets.token_hex(8))
            await exchange.write(_event(TextDelta(f" {segment.text}" if heard else segment.text)))
            heard.append(segment)
    except RecognizerLost as error:
        if not exchange.begun:
            raise
        await exchange.write(b"event: error\ndata: " + speech_unavailable(error).body + b"\n\n", more=False)
        return
    if not exchange.begun:
        await exchange.begin_events(secrets.token_hex(8))
    await exchange.write(_event(TextDone(text_of(heard), Duration(round(seconds, 2)))), more=False)


def _event(event: TextDelta | TextDone) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


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
    wanted = _transcript_format(_value(form, "response_format"))
    streamed = _SWITCH.get((_value(form, "stream") or "").lower())
    if streamed is None:
        raise invalid("stream", "`stream` must be true or false.")
    if streamed and wanted not in {"json", "text"}:
        raise invalid("stream", "A stream of words has no times: use `response_format` json with `stream`.")
    granularities = _granularities(form, wanted, facts)
    if (file := form.files.get("file")) is None:
        raise invalid("file", "`file` is missing: it is the recording.")
    return TranscriptionRequest(file.content, _is_raw(file), language, wanted, granularities, streamed)


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


def _transcript_format(name: str | None) -> Format:
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


def media_type(wanted: Format) -> str:
    """Return the media type of a format."""
    return _MEDIA_TYPES[wanted]


def text_of(segments: Sequence[Segment]) -> str:
    """Return all words."""
    return " ".join(segment.text for segment in segments)


def transcript(
    segments: Sequence[Segment],
    seconds: float,
    wanted: Format,
    granularities: Sequence[Granularity],
    language: str,
) -> bytes:
    """Return the words of a recording of this length in a format. `language`: its name."""
    match wanted:
        case "json":
            return msgspec.json.encode(Transcription(text_of(segments), Duration(round(seconds, 2))))
        case "verbose_json":
            return msgspec.json.encode(_verbose(segments, seconds, granularities, language))
        case "text":
            return f"{text_of(segments)}\n".encode()
        case "srt":
            return "\n".join(_subtitles(segments, lambda at: _time(at, ","))).encode()
        case "vtt":
            return "\n".join(("WEBVTT", "", *_captions(segments))).encode()


def _verbose(
    segments: Sequence[Segment], seconds: float, granularities: Sequence[Granularity], language: str
) -> VerboseTranscription:
    timed = tuple(
        TimedSegment(id=number, start=one.start, end=one.end, text=one.text)
        for number, one in enumerate(segments)
    )
    words = tuple(word for segment in segments for word in segment.words)
    return VerboseTranscription(
        language=language,
        duration=round(seconds, 2),
        text=text_of(segments),
        words=words if "word" in granularities else None,
        segments=timed if "segment" in granularities else None,
        usage=Duration(round(seconds, 2)),
    )


def _subtitles(segments: Sequence[Segment], time: Callable[[float], str]) -> Iterator[str]:
    for number, segment in enumerate(segments, 1):
        yield f"{number}\n{time(segment.start)} --> {time(segment.end)}\n{segment.text}\n"


def _captions(segments: Sequence[Segment]) -> Iterator[str]:
    for segment in segments:
        yield f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{segment.text}\n"


def _time(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and thousandths."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{thousandths:03}"


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


class File(msgspec.Struct, frozen=True):
    """A file as sent."""

    name: str
    media_type: str
    content: bytes


class Form(msgspec.Struct, frozen=True):
    """The values of each field in order, and the files."""

    values: dict[str, list[str]]
    files: dict[str, File]


def parse_form(body: bytes, content_type: str) -> Form:
    """Return the fields of a form. Raises Problem."""
    form = Form({}, {})
    for number, (head, content) in enumerate(_parts(body, _boundary(content_type))):
        if number >= MAX_FIELDS:
            raise invalid(None, f"The form has too many fields; it may have {MAX_FIELDS}.")
        _put(form, _headers(head), content)
    return form


def _put(form: Form, head: Message, content: bytes) -> None:
    name = head.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise invalid(None, _BROKEN)
    file_name = head.get_filename()
    if file_name is not None or name == "file":
        form.files[name] = File(file_name or "", head.get_content_type(), content)
        return
    if len(content) > _MAX_VALUE_BYTES:
        raise invalid(None, f"A field of the form is too long: it may have {_MAX_VALUE_BYTES} bytes.")
    form.values.setdefault(name.removesuffix("[]"), []).append(content.decode(errors="replace"))


def _boundary(content_type: str) -> bytes:
    headers = Message()
    headers["content-type"] = content_type if content_type.count(";") <= _MAX_PARAMETERS else ""
    boundary = headers.get_param("boundary")
    is_form = headers.get_content_type() == "multipart/form-data"
    if not is_form or not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
        raise Problem(
            415, "Send the recording as a form, multipart/form-data.", code="unsupported_media_type"
        )
    return b"--" + boundary.encode()


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the head and the content of each part. Raises Problem."""
    at = body.find(boundary)
    while True:
        start = at + len(boundary)
        if at < 0:
            raise invalid(None, _BROKEN)
        if body.startswith(b"--", start):
            return
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD_BYTES)
        at = body.find(b"\r\n" + boundary, max(head_end, start))
        if head_end < 0 or at < 0:
            raise invalid(None, _BROKEN)
        yield body[start + 2 : head_end], body[head_end + 4 : at]
        at += 2


def _headers(head: bytes) -> Message:
    """Raises Problem."""
    headers = Message()
    for line in head.decode(errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if value.count(";") > _MAX_PARAMETERS:
            raise invalid(None, _BROKEN)
        if name.strip():
            headers[name.strip()] = value.strip()
    return headers
