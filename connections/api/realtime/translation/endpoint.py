"""`GET /v1/realtime/translations`: the handshake, and the life of a session after it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar, assert_never

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute

from connections.api.fields import NO_AUDIO
from connections.api.realtime.encoder import EventLines
from connections.api.realtime.endpoint import HandshakeRequest, SessionContext, SessionEndpoint
from connections.api.realtime.server_events import InvalidEvent
from connections.api.realtime.translation.events import (
    AnyClientEvent,
    AudioAppend,
    Interpretation,
    SessionClose,
    SessionUpdate,
    TextAppend,
    TranslationEventEncoder,
    TranslationFrame,
    closed,
)
from connections.api.realtime.translation.session import QueuedText, TranslationOptions, TranslationSession
from connections.api.realtime.translation.speech import SpeechInput, SpeechOutput, voice_for, wait_for_reader
from connections.connection import Connection, Handler, error_frame
from connections.http.refusal_counters import EndpointName
from connections.limiters import Limiters
from connections.outbox import Outbox
from connections.protocol import codec, frames
from connections.protocol.audio import AudioStart
from connections.protocol.base import INTERPRET
from connections.protocol.errors import BadParams, Close, CloseCode
from connections.protocol.frames import Frame
from connections.protocol.scopes import Grant
from connections.voice.connection import VoiceService
from connections.websocket_endpoint import MultilineTransport, WebSocketTransport
from engine.served_models import ServedModel
from sessions.errors import Conflict, NotFound, Overloaded, Refused
from sessions.interpreting.interpretation import Grown, Growth
from sessions.interpreting.languages import AUTO
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.service import Sessions

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
PATH = "/v1/realtime/translations"
NO_EXPIRY = 253_402_300_799
"""The end of the year 9999: a session ends with its client's token, and has no end of its own."""
PendingWork = Coroutine[Any, Any, None]
T = TypeVar("T")
MAX_ATTEMPTS = 5
"""How often a growth, or the beginning of an interpretation, is sent if it fails for now."""
RETRY_MS = 500
"""The pause before a retry, if the refusal names none."""
DRAIN_TIMEOUT_S = 10.0
"""How long the end of a session waits for a late reader."""
_STALLED = Close(CloseCode.OVERLOAD, "The translation can't go on; reconnect.")


def decode(message: str | bytes) -> AnyClientEvent:
    """Return one client event. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class TranslationCodec(EventLines):
    """The coding of one session."""

    def __init__(self, encoder: TranslationEventEncoder) -> None:
        super().__init__()
        self._encoder = encoder

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame."""
        return self.lines(self._encoder.encode(frame))


class TranslationEndpoint(SessionEndpoint):
    """Serves clients of translation sessions: connections like native ones, with other frames."""

    KIND = EndpointName.TRANSLATIONS

    def model_of(self, request: HandshakeRequest, grant: Grant) -> ServedModel:
        """Return the named model; else the first that only translates, else the default. Raises Refused."""
        if request.model is None:
            for model in self.request_context.models(grant):
                facts = model.engine.facts
                has_languages = facts is not None and facts.languages is not None and facts.languages.targets
                if has_languages and not model.engine.status.state.is_final:
                    return model
        return super().model_of(request, grant)

    async def serve(self, socket: WebSocketTransport, handshake_info: SessionContext) -> None:
        """Serve one session. Raises Close, Disconnected."""
        session = TranslationSession(
            conversation_id=handshake_info.request.conversation_id,
            model=handshake_info.model.name,
            facts=lambda: handshake_info.model.engine.facts,
            expires_at=NO_EXPIRY
            if handshake_info.identity.expires_at is None
            else int(handshake_info.identity.expires_at),
            voices=() if self.spoken is None else self.spoken.voices,
        )
        encoder = TranslationEventEncoder()
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=TranslationCodec(encoder).encode,
            tally=self.tally,
            features=frozenset({INTERPRET}),
        )
        encoder.lost = connection.shut
        voice = None if self.spoken is None else self.spoken.voice
        speech_output = None if voice is None else SpeechOutput(voice, connection)
        encoder.on_translation = None if speech_output is None else speech_output.feed
        handler = TranslationsHandler(
            session=session,
            encoder=encoder,
            inner=self.frames(handshake_info.limits),
            sessions=self.sessions,
            limiters=self.limiters,
            voice_service=self.spoken,
            speech_output=speech_output,
        )
        async with self.lifecycle.of(connection):
            connection.push(TranslationFrame(events=(session.created(),)))
            with self.access.watch(handshake_info.identity, connection):
                async with _speaking(speech_output):
                    await connection.serve(handler, decode)


@asynccontextmanager
async def _speaking(speech_output: SpeechOutput | None) -> AsyncIterator[None]:
    """Speak while the context lasts."""
    async with asyncio.TaskGroup() as tasks:
        task = None if speech_output is None else tasks.create_task(speech_output.run())
        try:
            yield
        finally:
            if task is not None:
                task.cancel()


def translations_routes(endpoint: TranslationEndpoint) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    return [WebSocketRoute(PATH, endpoint.accept)]


class TranslationsHandler:
    """Handles one session's events. `inner`: answers frames. Only one task at a time passes on what waits."""

    def __init__(
        self,
        *,
        session: TranslationSession,
        encoder: TranslationEventEncoder,
        inner: Handler[frames.Request],
        sessions: Sessions,
        limiters: Limiters,
        voice_service: VoiceService | None,
        speech_output: SpeechOutput | None,
    ) -> None:
        """`voice_service`: None without speech recognition; `speech_output`: None if translations are text only."""
        self._session = session
        self._encoder = encoder
        self._inner = inner
        self._sessions = sessions
        self._limiters = limiters
        self._options: TranslationOptions | None = None  # of the current interpretation
        self._is_busy = False
        self._voice_service = voice_service
        self._speech_output = speech_output
        self._speech_input: SpeechInput | None = None
        self._speech_tasks: asyncio.TaskGroup | None = None
        self._has_audio_input = False

    def handle(self, connection: Connection, event: AnyClientEvent) -> PendingWork | None:
        """Decide at once; return the work that passes on what waits, unless it runs. Raises BadParams, Refused."""
        match event:
            case SessionUpdate():
                self._update(connection, event)
            case TextAppend():
                self._session.append(event.text, event.ref)
            case AudioAppend():
                return self._listen(connection, event.audio)
            case SessionClose():
                self._session.end_input()
                return self._end(connection)
            case _:
                assert_never(event)
        return None if self._is_busy else self._process_queue(connection)

    def _update(self, connection: Connection, event: SessionUpdate) -> None:
        """Change the options. Raises BadParams, Refused."""
        before = self._session.settings.options.source
        settings = self._session.settings.changed(event.session)
        if (
            self._voice_service is not None
            and self._speech_input is not None
            and settings.options.source != before
        ):
            self._voice_service.check(_audio_start(settings.options))
        connection.push(TranslationFrame(events=(self._session.update(event),)))
        self._encoder.sends_source = settings.transcription is not None
        if self._voice_service is not None and self._speech_input is not None:
            self._speech_input.set_language(self._voice_service.language_of(_audio_start(settings.options)))

    def _choose_voice(self, options: TranslationOptions) -> None:
        """Choose the voice: a client that speaks gets one of the language, one that types only the one it names."""
        if self._speech_output is not None and self._voice_service is not None:
            found = (
                voice_for(self._voice_service.voices, options.target or "") if self._has_audio_input else None
            )
            self._speech_output.begin(options.voice or found)

    def _listen(self, connection: Connection, audio: str) -> PendingWork | None:
        """Take sound; the first one returns the work of listening. Raises InvalidEvent, BadParams."""
        if self._voice_service is None:
            raise InvalidEvent(NO_AUDIO, field="type", code="unsupported_content_type")
        self._session.check()
        if self._speech_input is not None:
            self._speech_input.feed(audio)
            return None
        start = _audio_start(self._session.settings.options)
        self._voice_service.check(start)
        speech_input = SpeechInput(
            self._voice_service,
            connection,
            partial(self._append_speech, connection),
            language=self._voice_service.language_of(start),
        )
        speech_input.feed(audio)
        self._speech_input = speech_input
        self._has_audio_input = True
        return self._run_speech_input(speech_input)

    async def _run_speech_input(self, speech_input: SpeechInput) -> None:
        """Listen. Raises Overloaded."""
        failed: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as self._speech_tasks:
                await speech_input.run()
        except* Overloaded as full:
            failed += full.exceptions
        finally:
            self._speech_input = self._speech_tasks = None
        if failed:
            raise failed[0]

    def _append_speech(self, connection: Connection, text: str) -> None:
        try:
            self._session.queue.add(text, self._session.settings.options)
        except Overloaded as why:
            connection.push(error_frame(why, None))
        if self._speech_tasks is not None and not self._is_busy:
            self._speech_tasks.create_task(self._process_queue(connection))

    async def _end(self, connection: Connection) -> None:
        """Wait until the rest is understood, translated and spoken."""
        if self._speech_input is not None:
            await self._speech_input.end()
        self._session.close()
        await self._process_queue(connection)

    async def _process_queue(self, connection: Connection) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while await self._step(connection):
                pass
        finally:
            self._is_busy = False

    async def _step(self, connection: Connection) -> bool:
        """Pass on some of what waits; return whether there may be more. Refusals are sent, their text is dropped."""
        part, current = self._session.queue.head(), self._encoder.current
        if current is not None and (
            self._session.is_closing if part is None else part.options != self._options
        ):
            await self._grow(
                connection,
                current,
                QueuedText("", self._options or self._session.settings.options, ends=True),
            )
        elif part is None:
            return await self._close(connection)
        elif current is not None:
            await self._take(connection, current)
        elif part.text.strip():
            await self._begin(connection, part.options)
        else:
            self._session.queue.take(0)
        return True

    async def _close(self, connection: Connection) -> bool:
        if self._session.is_closing and not connection.closed:
            if self._speech_output is not None:
                await self._speech_output.finish()
            connection.push(closed())
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await wait_for_reader(connection, 0)
            connection.shut(Close(CloseCode.BYE, "The session is closed."))
        return False

    async def _begin(self, connection: Connection, options: TranslationOptions) -> None:
        client_msg_id = f"translation_{secrets.token_hex(12)}"
        start = options.start(
            client_msg_id=client_msg_id,
            conversation_id=self._session.conversation_id,
            model=self._session.model,
        )
        begun, is_refused = self._encoder.begin(client_msg_id), True
        self._choose_voice(options)
        try:
            await _retry(partial(self._submit, connection, start))
            is_refused = False
        except (Refused, BadParams) as why:
            connection.push(error_frame(why, self._session.queue.drop().ref))
        finally:
            if is_refused:
                self._encoder.current = None
        if not is_refused:
            self._options = options
        elif begun.turn_id is not None:  # the store took it, but could not confirm it
            await self._abandon(connection, begun)

    async def _submit(self, connection: Connection, frame: frames.Request) -> None:
        """Have a frame answered. Raises Refused, BadParams."""
        if (slow := self._inner.handle(connection, frame)) is not None:
            await slow

    async def _take(self, connection: Connection, current: Interpretation) -> None:
        part = self._session.queue.take(current.chars)
        if part.text or part.ends:
            await self._grow(connection, current, part)

    async def _grow(self, connection: Connection, current: Interpretation, part: QueuedText) -> None:
        """Grow an interpretation. Text that is too late waits for the next one; growth by others is continued."""
        growth = Growth(off=current.chars, text=part.text, final=part.ends, turn_id=current.turn_id)
        try:
            grown = await _retry(partial(self._send, connection, growth))
        except Refused as why:
            is_lost = isinstance(why, Conflict | NotFound)
            if is_lost and await current.continues_after(growth.off):
                self._session.queue.put_back(part)
                return
            connection.push(error_frame(why, part.ref))
            if is_lost or why.retryable or not part.text:
                await self._abandon(connection, current)
            if why.retryable:  # it is not known how much of it was stored
                connection.shut(_STALLED)
            return
        current.note_chars(grown.chars)
        if part.ends:
            await current.over.wait()

    async def _send(self, connection: Connection, growth: Growth) -> Grown:
        """Send a growth. Raises Refused."""
        self._limiters.take_read(connection.caller.subject)
        return await self._sessions.grow(connection.owner, self._session.conversation_id, growth)

    async def _abandon(self, connection: Connection, abandoned: Interpretation) -> None:
        """Cancel an interpretation that its session does not know: it would block the next one of its conversation."""
        self._encoder.current = None
        if abandoned.over.is_set():
            return
        if abandoned.turn_id is None:  # its client reads too late to know; leaving ends it, too
            connection.shut(_STALLED)
            return
        conversation_id = self._session.conversation_id
        try:
            await self._submit(
                connection, frames.Cancel(turn_id=abandoned.turn_id, conversation_id=conversation_id)
            )
        except (Refused, BadParams) as why:
            connection.push(error_frame(why, None))
            connection.shut(_STALLED)


def _audio_start(options: TranslationOptions) -> AudioStart:
    return AudioStart(language=None if options.source == AUTO else options.source)


async def _retry(act: Callable[[], Awaitable[T]]) -> T:
    """Repeat an act until it succeeds, while that may help. Raises Refused, BadParams."""
    tried = 1
    while True:
        try:
            return await act()
        except Refused as why:
            if not why.retryable or tried == MAX_ATTEMPTS:
                raise
            pause_ms = why.retry_after_ms or RETRY_MS
        tried += 1
        await asyncio.sleep(pause_ms / 1000)
