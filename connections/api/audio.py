"""OpenAI's endpoints for sound: transcriptions of recordings, and speech."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from email.message import Message
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Literal, cast, get_args

import msgspec
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from connections.api.endpoint import IGNORED_HEADER, PageRoutes, RequestContext
from connections.api.requests import VOICES, Problem, invalid
from connections.authentication.caller import Caller
from connections.http import EndpointName, Exchange, check_json_limits, sse
from connections.limiters import slot
from connections.protocol.base import KeyScope
from connections.protocol.errors import shorten, validation_problem
from engine.errors import install_command
from sessions.conversation.conversation import refusal_of
from sessions.limits.shares import AGAIN_MS, FairShare, Subject
from speech.errors import BadSound, RecognizerLost, SpeechError, TooMuchSound, VoiceFailed
from speech.interfaces import RAW_RATE, AudioStream, Recording, Synthesizer
from speech.recognition import Ready, Recognizer, Segment
from speech.recordings import header, recording_in

if TYPE_CHECKING:
    from speech.compression import Compression, Encoder


TRANSCRIPTIONS = "/v1/audio/transcriptions"
SPEECH = "/v1/audio/speech"
MAX_FORM_BYTES = 25 * 1024 * 1024
"""Bytes of a form; OpenAI's limit."""
TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
_RAW_TYPES = {"audio/pcm", "audio/l16"}
_RAW_NAMES = (".pcm", ".raw")
_SWITCH = {"true": True, "1": True, "false": False, "0": False, "": False}
TRANSCRIPTION_MODELS = frozenset(
    (
        *("whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
        "gpt-4o-mini-transcribe-2025-12-15",
    )
)
_TRANSCRIPT_TYPES: dict[TranscriptFormat, str] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "text/plain",
    "vtt": "text/vtt",
}
MAX_FIELDS = 32
MAX_VALUE_BYTES = 64 * 1024
"""Bytes of a field that is not a file."""
MAX_PARAMETERS = 20
"""Parameters of a header. The standard library reads them in a time that grows with their square."""
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")
"""RFC 2046, section 5.1.1."""
_FORM_PART_BYTES = 64 * 1024
"""Bytes of a form that are parsed at once: then others have their turn."""
SpeechFormat = Literal["wav", "pcm", "mp3", "opus", "aac", "flac"]
WRITE_TIMEOUT_S = 30.0
"""How long a client may stop reading: the voice would wait for it."""
MAX_BODY_BYTES = 256 * 1024
NICENESS = 10
"""Niceness of the one thread that compresses sound: replies come first, since a socket buffers minutes of unheard sound."""
MEDIA_TYPES: dict[SpeechFormat, bytes] = {
    "wav": b"audio/wav",
    "pcm": b"audio/pcm",
    "mp3": b"audio/mpeg",
    "opus": b"audio/ogg",
    "aac": b"audio/aac",
    "flac": b"audio/flac",
}
_BUSY = "The server is busy with other speech requests; try again in a moment."
UNCOMPRESSED = frozenset(("wav", "pcm"))
SPEECH_MODELS = frozenset(("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """The recognizer and the voice, with their limits. None: not available."""

    recognizer: Recognizer | None = None
    speaker: Synthesizer | None = None
    longest_s: int
    most_chars: int
    slots: int


def audio_routes(audio: Audio, request_context: RequestContext, pages: PageRoutes) -> list[BaseRoute]:
    """Return the routes below `/v1/audio`."""
    routes: list[BaseRoute] = []
    if audio.recognizer is not None:
        endpoint = TranscriptionsEndpoint(audio, audio.recognizer, request_context)
        routes.append(pages.route(TRANSCRIPTIONS, endpoint, "POST"))
    if audio.speaker is not None:
        speech = SpeechEndpoint(audio, audio.speaker, request_context)
        routes.append(pages.route(SPEECH, speech, "POST"))
    return routes


class AudioEndpoint(ABC):
    """Admits and counts clients, and holds a place for each, from the first byte of the body to the last one of the answer."""

    endpoint: ClassVar[EndpointName]

    def __init__(self, audio: Audio, request_context: RequestContext) -> None:
        self._request_context = request_context
        self._slots = FairShare(audio.slots)

    @abstractmethod
    async def read(self, exchange: Exchange, caller: Caller) -> Coroutine[None, None, None]:
        """Read a request, and return the work of answering it. Raises Refused, SpeechError, ClientDisconnect."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A refusal is answered if nothing was sent; otherwise the connection ends."""
        exchange = Exchange(scope, receive, send)
        refused = await refusal_of(self._serve(exchange))
        if refused is not None and exchange.begun:
            exchange.cut_off()
        elif refused is not None:
            await exchange.answer(self._request_context.refusal(refused, self.endpoint))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request while its client is there and its token is valid. Raises Refused."""
        try:
            caller = await self._request_context.caller(exchange.request)
            caller.grant.check(KeyScope.CHAT)
            self._request_context.take(caller)
            with slot(self._slots, caller.subject, _BUSY), suppress(ClientDisconnect):
                await self._request_context.count(caller)
                work = await self.read(exchange, caller)
                await self._request_context.run_while_valid(exchange, caller, work)
        except SpeechError as error:
            raise speech_unavailable(error) from None


def speech_unavailable(error: SpeechError) -> Problem:
    """Return a temporary failure in OpenAI's terms."""
    return Problem(503, str(error), code="speech_unavailable", retry_after_ms=AGAIN_MS)


def check_model(name: str | None, served: str, aliases: AbstractSet[str]) -> None:
    """Raise Problem for a name that is neither `served` nor an alias; an empty one is Open WebUI's default."""
    if name is None:
        raise invalid("model", f"`model` is missing. This server has {served} here.")
    if name not in {"", served} | aliases:
        why = f'This server has "{served}" here, and no model "{shorten(name)}".'
        raise Problem(404, why, code="model_not_found", param="model")


class TranscriptionsEndpoint(AudioEndpoint):
    """`POST /v1/audio/transcriptions`: a recording's words, whole or as they are recognized, while its client is there.

    The form (multipart/form-data, RFC 7578) is read in memory: nothing is written to disk.
    """

    endpoint = EndpointName.TRANSCRIPTIONS

    def __init__(self, audio: Audio, recognizer: Recognizer, request_context: RequestContext) -> None:
        super().__init__(audio, request_context)
        self._recognizer = recognizer
        self._longest_s = audio.longest_s

    async def read(self, exchange: Exchange, caller: Caller) -> Coroutine[None, None, None]:
        """Read a form. Raises Refused, ClientDisconnect."""
        body = await exchange.body(lambda: None, most=MAX_FORM_BYTES)
        form = await parse_form(body, exchange.request.headers)
        recognizer = self._recognizer
        try:
            request = await transcription_request(form, model=recognizer.name, facts=recognizer.facts)
        finally:
            await form.close()
        return self._answer(exchange, caller.subject, request)

    async def _answer(self, exchange: Exchange, subject: Subject, request: TranscriptionRequest) -> None:
        recording = await self._recording(request)
        request = msgspec.structs.replace(request, file=b"")  # else the sound would be in memory twice
        heard = self._recognizer.transcribe(recording, owner=subject.owner, language=request.language)
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
    body = transcript(heard, seconds, request.format, language)
    headers = {"Cache-Control": "no-store"}
    await exchange.answer(Response(body, headers=headers, media_type=_TRANSCRIPT_TYPES[request.format]))


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
        await exchange.write(sse(speech_unavailable(error).body, "error"), more=False)
        return
    if not exchange.begun:
        await exchange.begin_events(secrets.token_hex(8))
    await exchange.write(_event(TextDone(text_of(heard), Duration(round(seconds, 2)))), more=False)


def _event(event: TextDelta | TextDone | AudioDelta | AudioDone) -> bytes:
    return sse(msgspec.json.encode(event))


class TranscriptionRequest(msgspec.Struct, frozen=True):
    """A file, and the requested format. `is_raw`: without a header. `language`: a code; None: any."""

    file: bytes
    is_raw: bool
    language: str | None
    format: TranscriptFormat
    is_streamed: bool


async def transcription_request(form: FormData, *, model: str, facts: Ready) -> TranscriptionRequest:
    """Return what a form requests of the recognizer, with its name and facts. Raises Problem."""
    check_model(_value(form, "model"), model, TRANSCRIPTION_MODELS)
    language = _language(_value(form, "language"), facts)
    wanted = _transcript_format(_value(form, "response_format"))
    streamed = _SWITCH.get((_value(form, "stream") or "").lower())
    if streamed is None:
        raise invalid("stream", "`stream` must be true or false.")
    if streamed and wanted not in {"json", "text"}:
        raise invalid("stream", "Streams have no timestamps: use `response_format` json with `stream`.")
    granularities = [form.getlist(f"timestamp_granularities{suffix}") for suffix in ("", "[]")]
    if any(one != "segment" for one in chain(*granularities)):
        raise invalid("timestamp_granularities", "`timestamp_granularities` may only have segment.")
    if not isinstance(file := form.get("file"), UploadFile):
        raise invalid("file", "`file` is missing: attach the recording.")
    is_raw = file.content_type in _RAW_TYPES or (file.filename or "").lower().endswith(_RAW_NAMES)
    return TranscriptionRequest(await file.read(), is_raw, language, wanted, streamed)


def _value(form: FormData, name: str) -> str | None:
    value = form.get(name)
    return value if isinstance(value, str) else None


def _language(requested: str | None, facts: Ready) -> str | None:
    """Return the code of a language, given by its code, a code with a region, or its English name."""
    if not requested:
        return facts.language
    name = requested.lower().replace("_", "-").partition("-")[0]
    if not facts.languages:
        return name  # the recognizer does not list its languages
    codes = {name: code for code, name in facts.languages.items()}
    code = name if name in facts.languages else codes.get(requested.lower())
    if code is not None:
        return code
    if facts.language is not None:
        only = facts.languages[facts.language].capitalize()
        raise invalid("language", f"The recognizer supports {only} only: use `{facts.language}`.")
    why = f"The recognizer does not support this language. Supported: {', '.join(facts.languages)}."
    raise invalid("language", why)


def _transcript_format(name: str | None) -> TranscriptFormat:
    return cast("TranscriptFormat", _one_of(name or "json", get_args(TranscriptFormat)))


def _one_of(name: str, formats: Sequence[str]) -> str:
    """Return `name` if it is among `formats`. Raises Problem."""
    if name not in formats:
        raise invalid("response_format", f"`response_format` must be one of {', '.join(formats)}.")
    return name


def text_of(segments: Sequence[Segment]) -> str:
    """Return all words."""
    return " ".join(segment.text for segment in segments)


def transcript(
    segments: Sequence[Segment],
    seconds: float,
    wanted: TranscriptFormat,
    language: str,
) -> bytes:
    """Return a recording's words in the format `wanted`. `language`: its name."""
    match wanted:
        case "json":
            return msgspec.json.encode(Transcription(text_of(segments), Duration(round(seconds, 2))))
        case "verbose_json":
            return msgspec.json.encode(_verbose(segments, seconds, language))
        case "text":
            return f"{text_of(segments)}\n".encode()
        case "srt":
            numbered = (f"{number}\n{one}" for number, one in enumerate(_captions(segments, ","), 1))
            return "\n".join(numbered).encode()
        case "vtt":
            return "\n".join(("WEBVTT", "", *_captions(segments, "."))).encode()


def _verbose(segments: Sequence[Segment], seconds: float, language: str) -> VerboseTranscription:
    return VerboseTranscription(
        language=language,
        duration=round(seconds, 2),
        text=text_of(segments),
        segments=tuple(
            TimedSegment(id=number, start=one.start, end=one.end, text=one.text)
            for number, one in enumerate(segments)
        ),
        usage=Duration(round(seconds, 2)),
    )


def _captions(segments: Sequence[Segment], point: str) -> Iterator[str]:
    for segment in segments:
        yield f"{_time(segment.start, point)} --> {_time(segment.end, point)}\n{segment.text}\n"


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
    """The words of a recording with the times of segments."""

    task: Literal["transcribe"] = "transcribe"
    language: str
    duration: float
    text: str
    segments: tuple[TimedSegment, ...]
    usage: Duration


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    """More of the text, in a stream."""

    delta: str


class TextDone(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    """The whole text, at the end of a stream."""

    text: str
    usage: Duration


class _InMemory(MultiPartParser):
    """A parser that writes nothing to the disk. `has_ended`: the form is complete."""

    spool_max_size = MAX_FORM_BYTES
    has_ended = False

    def on_end(self) -> None:
        """Note the end of the form."""
        self.has_ended = True


async def parse_form(body: bytes, headers: Headers) -> FormData:
    """Return the fields of a form (multipart/form-data, RFC 7578), to be closed. Raises Problem."""

    async def parts() -> AsyncGenerator[bytes]:
        for at in range(0, len(body), _FORM_PART_BYTES):
            yield body[at : at + _FORM_PART_BYTES]
            await asyncio.sleep(0)
        if not parser.has_ended:
            raise MultiPartException("It has no end.")

    kind = Message()
    given = headers.get("content-type", "")
    kind["content-type"] = given if given.count(";") <= MAX_PARAMETERS else ""
    if kind.get_content_type() != "multipart/form-data":
        raise Problem(415, "Send the recording as multipart/form-data.", code="unsupported_media_type")
    boundary = kind.get_param("boundary")
    if not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
        raise invalid(None, "The form is malformed: Missing boundary in multipart.")
    # nothing else of the header: a `charset` would choose the codec of all fields
    own = Headers({"content-type": f'multipart/form-data; boundary="{boundary}"'})
    bounds = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": MAX_VALUE_BYTES}
    async with aclosing(parts()) as stream:  # a suspended generator would keep the body
        parser = _InMemory(own, stream, **bounds)
        try:
            return await parser.parse()
        except MultiPartException as error:
            raise invalid(None, f"The form is malformed: {error.message}") from None


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
    """What to speak, and how. `instructions` have no effect."""

    input: str
    voice: str
    model: str | None = None
    response_format: str | None = None
    speed: float | None = None
    instructions: str | None = None
    stream_format: str | None = None


class SynthesisRequest(msgspec.Struct, frozen=True):
    """A text, and how to speak it. `has_events`: the sound is sent as server-sent events. `ignored`: names of fields."""

    text: str
    voice: str
    speed: float
    format: SpeechFormat
    has_events: bool
    ignored: tuple[str, ...]


class SpeechEndpoint(AudioEndpoint):
    """`POST /v1/audio/speech`: a text as sound, sent while it is made. It ends if the client leaves, or does not read."""

    endpoint = EndpointName.SPEECH

    def __init__(self, audio: Audio, speaker: Synthesizer, request_context: RequestContext) -> None:
        super().__init__(audio, request_context)
        self._speaker = speaker
        self._most_chars = audio.most_chars

    async def read(self, exchange: Exchange, caller: Caller) -> Coroutine[None, None, None]:
        """Read a text. Raises Refused, ClientDisconnect."""
        body = await exchange.body(lambda: None, most=MAX_BODY_BYTES)
        synthesis = speech_request(body, speaker=self._speaker, most_chars=self._most_chars)
        return _answer(exchange, self._speaker, synthesis, owner=caller.subject.owner)


async def _answer(
    exchange: Exchange, speaker: Synthesizer, synthesis: SynthesisRequest, *, owner: str
) -> None:
    """Speak the text. Raises VoiceFailed, unless the failure was sent as an event."""
    try:
        async with speaker.speaking(
            synthesis.text, voice=synthesis.voice, speed=synthesis.speed, owner=owner
        ) as voice:
            await _send(exchange, voice, synthesis)
    except VoiceFailed as error:
        if not exchange.begun or not synthesis.has_events:
            raise
        await exchange.write(sse(speech_unavailable(error).body, "error"), more=False)


async def _send(exchange: Exchange, voice: AudioStream, synthesis: SynthesisRequest) -> None:
    async with aclosing(voice.parts()) as audio_parts:
        async for part in _encoded_parts(voice, audio_parts, synthesis.format):
            if not exchange.begun:
                await _begin(exchange, synthesis)
            await _write(exchange, _event(AudioDelta(part)) if synthesis.has_events else part)
    if not exchange.begun:
        raise VoiceFailed("The voice produced no audio.")
    await exchange.write(_event(AudioDone()) if synthesis.has_events else b"", more=False)


async def _encoded_parts(
    voice: AudioStream, audio_parts: AsyncIterator[bytes], wanted: SpeechFormat
) -> AsyncIterator[bytes]:
    """Yield the sound in a format. Headers come with the first sound, so an earlier failure is answered as one."""
    match wanted:
        case "wav":
            sound = _wav(voice, audio_parts)
        case "pcm":
            sound = _pcm(voice, audio_parts)
        case _:
            sound = _compressed(voice, audio_parts, wanted)
    async for part in sound:
        if part:
            yield part


async def _wav(voice: AudioStream, audio_parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    head = header(voice.rate)
    async for part in audio_parts:
        yield head + part
        head = b""


async def _pcm(voice: AudioStream, audio_parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    from speech.samples import Resampler  # noqa: PLC0415 - numpy, which the gateway has no other use for

    resampler = Resampler(voice.rate, RAW_RATE)
    async for part in audio_parts:
        yield resampler.part(part)
    yield resampler.part(b"", is_last=True)


async def _compressed(
    voice: AudioStream, audio_parts: AsyncIterator[bytes], compression: Compression
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    encoder: Encoder | None = None
    async for part in audio_parts:
        if encoder is None:
            encoder = await loop.run_in_executor(_ENCODING, _encoder, compression, voice.rate)
        yield await loop.run_in_executor(_ENCODING, encoder.part, part)
    if encoder is not None:
        yield await loop.run_in_executor(_ENCODING, encoder.last_part)


def _yield_to_others() -> None:
    """Lower this thread's priority, where threads have their own and may change it."""
    if sys.platform == "linux":
        with suppress(OSError):  # the process may have a lower priority already
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


_ENCODING = ThreadPoolExecutor(1, "encoding", _yield_to_others)


def _encoder(compression: Compression, rate: int) -> Encoder:
    from speech.compression import Encoder  # noqa: PLC0415 - PyAV, which is optional

    return Encoder(compression, rate)


async def _write(exchange: Exchange, part: bytes) -> None:
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await exchange.write(part)
    except TimeoutError:
        exchange.cut_off()
        raise ClientDisconnect from None


async def _begin(exchange: Exchange, synthesis: SynthesisRequest) -> None:
    ignored = {IGNORED_HEADER: ", ".join(synthesis.ignored)} if synthesis.ignored else {}
    if synthesis.has_events:
        await exchange.begin_events(secrets.token_hex(8), ignored)
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in ignored.items()]
    await exchange.begin(
        [(b"content-type", MEDIA_TYPES[synthesis.format]), (b"cache-control", b"no-store"), *headers]
    )


_decode = msgspec.json.Decoder(SpeechRequest).decode


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
        raise invalid("input", "`input` is empty.")
    if len(request.input) > most_chars:
        why = f"`input` is too long: it has {len(request.input):,} characters, and may have {most_chars:,}."
        raise invalid("input", why, code="content_too_long")


def _voice(request: SpeechRequest, speaker: Synthesizer) -> str:
    if request.voice in speaker.names:
        return request.voice
    if request.voice in VOICES:
        return speaker.names[0]
    raise invalid("voice", f"Unknown voice. Available: {speaker.examples}.")


def _speed(request: SpeechRequest, speaker: Synthesizer) -> float:
    speed = 1.0 if request.speed is None else request.speed
    slowest, fastest = speaker.speeds
    if slowest <= speed <= fastest:
        return speed
    if slowest == fastest:
        raise invalid("speed", "This model does not support `speed`: leave it out.")
    raise invalid("speed", f"`speed` must be from {slowest} to {fastest}.")


def _has_events(request: SpeechRequest) -> bool:
    if request.stream_format not in {None, "audio", "sse"}:
        raise invalid("stream_format", "`stream_format` must be audio or sse.")
    return request.stream_format == "sse"


def _format(request: SpeechRequest) -> SpeechFormat:
    """Return the requested format: by default OpenAI's, MP3, or WAV where no encoder is installed. Raises Problem."""
    can_compress = find_spec("av") is not None
    name = _one_of(request.response_format or ("mp3" if can_compress else "wav"), get_args(SpeechFormat))
    if name not in UNCOMPRESSED and not can_compress:
        why = (
            f"This server can't make {name}: use `response_format` wav or pcm. "
            f"The operator can install the encoder: {install_command('speech')}"
        )
        raise invalid("response_format", why)
    return cast("SpeechFormat", name)
