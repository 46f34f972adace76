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
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from connections.api.endpoint import IGNORED_HEADER
from connections.audio.admission import AudioAdmission, speech_unavailable
from connections.audio.schemas import AudioDelta, AudioDone
from connections.audio.speech_request import Format, SynthesisRequest, speech_request
from connections.http.exchange import Exchange
from speech.errors import VoiceFailed
from speech.sound.wav import RAW_RATE, header
from speech.voice.synthesizer import AudioStream, Synthesizer

if TYPE_CHECKING:
    from speech.sound.encoding import Compression, Encoder

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
    from speech.sound.samples import Resampler  # noqa: PLC0415 - numpy, which the gateway has no other use for

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
    from speech.sound.encoding import Encoder  # noqa: PLC0415 - PyAV, which is optional

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
