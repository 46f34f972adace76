"""`POST /v1/audio/transcriptions`: a recording's words, whole or as they are recognized, while its client is there."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from connections.api.errors import invalid
from connections.audio.admission import AudioAdmission, speech_unavailable
from connections.audio.multipart import parse_form
from connections.audio.schemas import Duration, TextDelta, TextDone
from connections.audio.transcription_request import TranscriptionRequest, transcription_request
from connections.audio.transcripts import media_type, text_of, transcript
from connections.http.exchange import Exchange
from sessions.fair_share import Subject
from speech.decoding.decoder import recording_in
from speech.errors import BadSound, RecognizerLost, TooMuchSound
from speech.recognition.messages import Segment
from speech.recognition.recognizer import Recognizer
from speech.sound.wav import Recording

MAX_FORM_BYTES = 25 * 1024 * 1024
"""Bytes of a form; OpenAI's limit."""


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
