"""`POST /v1/audio/speech`: a text as sound, sent while it is made. It ends if the client leaves, or does not read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from connections.audio.counter import Counter, lost
from connections.audio.speech_request import Format, Spoken, speech_request
from connections.audio.wire import AudioDelta, AudioDone
from connections.http.exchange import Exchange
from connections.openai.answering import IGNORED
from speech.errors import VoiceFailed
from speech.sound.wav import RAW_RATE, header
from speech.voice.speaker import Sounding, Speaker

if TYPE_CHECKING:
    from speech.sound.encoding import Compression, Encoder

UNREAD_S = 30.0
"""How long a client may stop reading: the voice would wait for it."""
MOST_BYTES = 256 * 1024
MEDIA_TYPES: dict[Format, bytes] = {
    "wav": b"audio/wav",
    "pcm": b"audio/pcm",
    "mp3": b"audio/mpeg",
    "opus": b"audio/ogg",
    "aac": b"audio/aac",
    "flac": b"audio/flac",
}


class SpeechDoor:
    """Answers requests."""

    def __init__(self, speaker: Speaker, counter: Counter, *, most_chars: int) -> None:
        """`most_chars`: characters of one text."""
        self._speaker = speaker
        self._counter = counter
        self._most_chars = most_chars

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        await self._counter.serve(exchange, self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request. Raises Refused, SpeechError, ClientDisconnect."""
        async with self._counter.admitted(exchange) as caller:
            body = await exchange.body(lambda: None, most=MOST_BYTES)
            spoken = speech_request(body, speaker=self._speaker, most_chars=self._most_chars)
            answered = _answer(exchange, self._speaker, spoken, owner=caller.subject.owner)
            await self._counter.while_good(exchange, caller, answered)


async def _answer(exchange: Exchange, speaker: Speaker, spoken: Spoken, *, owner: str) -> None:
    """Raises VoiceFailed if the head was not sent, or the answer ends without a word about it."""
    try:
        async with speaker.speaking(
            spoken.text, voice=spoken.voice, speed=spoken.speed, owner=owner
        ) as voice:
            await _send(exchange, voice, spoken)
    except VoiceFailed as error:
        if not exchange.begun or not spoken.has_events:
            raise
        await exchange.write(b"event: error\ndata: " + lost(error).body + b"\n\n", more=False)


async def _send(exchange: Exchange, voice: Sounding, spoken: Spoken) -> None:
    async with aclosing(voice.parts()) as made:
        async for part in _formatted(voice, made, spoken.format):
            if not exchange.begun:
                await _begin(exchange, spoken)
            await _write(exchange, _event(AudioDelta(part)) if spoken.has_events else part)
    if not exchange.begun:
        raise VoiceFailed("The voice made no sound.")
    await exchange.write(_event(AudioDone()) if spoken.has_events else b"", more=False)


async def _formatted(voice: Sounding, made: AsyncIterator[bytes], wanted: Format) -> AsyncIterator[bytes]:
    """Yield the sound in a format. Headers come with the first sound, so that an earlier failure is answered as one."""
    match wanted:
        case "wav":
            sound = _wav(voice, made)
        case "pcm":
            sound = _pcm(voice, made)
        case _:
            sound = _compressed(voice, made, wanted)
    async for part in sound:
        if part:
            yield part


async def _wav(voice: Sounding, made: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    head = header(voice.rate)
    async for part in made:
        yield head + part
        head = b""


async def _pcm(voice: Sounding, made: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    from speech.sound.samples import Resampler  # noqa: PLC0415 - numpy, which the gateway has no other use for

    resampler = Resampler(voice.rate, RAW_RATE)
    async for part in made:
        yield resampler.part(part)
    yield resampler.part(b"", is_last=True)


async def _compressed(
    voice: Sounding, made: AsyncIterator[bytes], compression: Compression
) -> AsyncIterator[bytes]:
    encoder: Encoder | None = None
    async for part in made:
        if encoder is None:
            encoder = await asyncio.to_thread(_encoder, compression, voice.rate)
        yield await asyncio.to_thread(encoder.part, part)
    if encoder is not None:
        yield await asyncio.to_thread(encoder.part, b"", is_last=True)


def _encoder(compression: Compression, rate: int) -> Encoder:
    from speech.sound.encoding import Encoder  # noqa: PLC0415 - PyAV, which is optional

    return Encoder(compression, rate)


async def _write(exchange: Exchange, part: bytes) -> None:
    try:
        async with asyncio.timeout(UNREAD_S):
            await exchange.write(part)
    except TimeoutError:
        exchange.cut_off()
        raise ClientDisconnect from None


async def _begin(exchange: Exchange, spoken: Spoken) -> None:
    ignored = {IGNORED: ", ".join(spoken.ignored)} if spoken.ignored else {}
    if spoken.has_events:
        await exchange.begin_events(secrets.token_hex(8), ignored)
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in ignored.items()]
    await exchange.begin(
        [(b"content-type", MEDIA_TYPES[spoken.format]), (b"cache-control", b"no-store"), *headers]
    )


def _event(event: AudioDelta | AudioDone) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
