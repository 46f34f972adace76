"""`POST /v1/audio/speech`: a text as sound, sent while it is made. It ends if the client leaves, or does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from connections.audio.counter import Counter
from connections.audio.speech_request import Spoken, speech_request
from connections.http.exchange import Exchange
from speech.errors import VoiceFailed
from speech.sound.wav import RAW_RATE, header
from speech.voice.speaker import Sounding, Speaker

UNREAD_S = 30.0
"""How long a client may stop reading: the voice would wait for it."""
MOST_BYTES = 256 * 1024
_MEDIA_TYPES = {"wav": b"audio/wav", "pcm": b"audio/pcm"}


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
    speaking = speaker.speaking(spoken.text, voice=spoken.voice, speed=spoken.speed, owner=owner)
    async with speaking as voice, aclosing(voice.parts()) as made:
        sound = _wav(voice, made) if spoken.format == "wav" else _pcm(voice, made)
        async for part in sound:
            if not exchange.begun:
                await exchange.begin(_head(spoken))
            await _write(exchange, part)
        if not exchange.begun:
            raise VoiceFailed("The voice made no sound.")
    await exchange.write(b"", more=False)


async def _wav(voice: Sounding, made: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the header with the first sound, so that an earlier failure is answered as one."""
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


async def _write(exchange: Exchange, part: bytes) -> None:
    if not part:
        return
    try:
        async with asyncio.timeout(UNREAD_S):
            await exchange.write(part)
    except TimeoutError:
        exchange.cut_off()
        raise ClientDisconnect from None


def _head(spoken: Spoken) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", _MEDIA_TYPES[spoken.format]), (b"cache-control", b"no-store")]
