"""`POST /v1/audio/speech`: a text as sound, sent while it is made. It ends if the client leaves, or does not read."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, cast, get_args

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from connections.api.audio.admission import AudioAdmission, check_model, speech_unavailable
from connections.api.endpoint import IGNORED_HEADER
from connections.api.errors import invalid
from connections.api.fields import VOICES
from connections.http import Exchange, check_json_limits
from connections.protocol.errors import validation_problem
from speech.errors import VoiceFailed
from speech.interfaces import RAW_RATE, AudioStream, Synthesizer
from speech.recordings import header

if TYPE_CHECKING:
    from speech.compression import Compression, Encoder

WRITE_TIMEOUT_S = 30.0
"""How long a client may stop reading: the voice would wait for it."""
MAX_BODY_BYTES = 256 * 1024
NICENESS = 10
"""Priority of the one thread that compresses sound: others' replies come first, since a socket takes minutes that nobody reads."""
MEDIA_TYPES: dict[Format, bytes] = {
    "wav": b"audio/wav",
    "pcm": b"audio/pcm",
    "mp3": b"audio/mpeg",
    "opus": b"audio/ogg",
    "aac": b"audio/aac",
    "flac": b"audio/flac",
}
Format = Literal["wav", "pcm", "mp3", "opus", "aac", "flac"]
UNCOMPRESSED = frozenset(("wav", "pcm"))
SPEECH_MODELS = frozenset(("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"))


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


class SynthesisRequest(msgspec.Struct, frozen=True):
    """A text, and how to speak it. `has_events`: the sound is sent as server-sent events. `ignored`: names of fields."""

    text: str
    voice: str
    speed: float
    format: Format
    has_events: bool
    ignored: tuple[str, ...]


class SpeechEndpoint:
    """Answers requests."""

    def __init__(self, speaker: Synthesizer, admission: AudioAdmission, *, most_chars: int) -> None:
        """`most_chars`: characters of one text."""
        self._speaker = speaker
        self._admission = admission
        self._most_chars = most_chars

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        await self._admission.serve(exchange, self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request. Raises Refused, SpeechError, ClientDisconnect."""
        async with self._admission.admitted(exchange) as caller:
            body = await exchange.body(lambda: None, most=MAX_BODY_BYTES)
            synthesis = speech_request(body, speaker=self._speaker, most_chars=self._most_chars)
            work = _answer(exchange, self._speaker, synthesis, owner=caller.subject.owner)
            await self._admission.run_while_valid(exchange, caller, work)


async def _answer(
    exchange: Exchange, speaker: Synthesizer, synthesis: SynthesisRequest, *, owner: str
) -> None:
    """Raises VoiceFailed if the head was not sent, or the answer ends without a word about it."""
    try:
        async with speaker.speaking(
            synthesis.text, voice=synthesis.voice, speed=synthesis.speed, owner=owner
        ) as voice:
            await _send(exchange, voice, synthesis)
    except VoiceFailed as error:
        if not exchange.begun or not synthesis.has_events:
            raise
        await exchange.write(b"event: error\ndata: " + speech_unavailable(error).body + b"\n\n", more=False)


async def _send(exchange: Exchange, voice: AudioStream, synthesis: SynthesisRequest) -> None:
    async with aclosing(voice.parts()) as audio_parts:
        async for part in _encoded_parts(voice, audio_parts, synthesis.format):
            if not exchange.begun:
                await _begin(exchange, synthesis)
            await _write(exchange, _event(AudioDelta(part)) if synthesis.has_events else part)
    if not exchange.begun:
        raise VoiceFailed("The voice made no sound.")
    await exchange.write(_event(AudioDone()) if synthesis.has_events else b"", more=False)


async def _encoded_parts(
    voice: AudioStream, audio_parts: AsyncIterator[bytes], wanted: Format
) -> AsyncIterator[bytes]:
    """Yield the sound in a format. Headers come with the first sound, so that an earlier failure is answered as one."""
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
    """Give this thread a low priority, where threads have one of their own and may change it."""
    if sys.platform == "linux":
        with suppress(OSError):  # a process may have a lower one already
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


def _event(event: AudioDelta | AudioDone) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


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
        raise invalid("input", "`input` is empty: there is nothing to speak.")
    if len(request.input) > most_chars:
        why = f"`input` is too long: it has {len(request.input):,} characters, and may have {most_chars:,}."
        raise invalid("input", why, code="content_too_long")


def _voice(request: SpeechRequest, speaker: Synthesizer) -> str:
    if request.voice in speaker.names:
        return request.voice
    if request.voice in VOICES:
        return speaker.names[0]
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
