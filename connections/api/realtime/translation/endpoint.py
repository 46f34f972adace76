"""`GET /v1/realtime/translations`: the handshake, the life of a session after it, and its sound.

Words go into the source once two hypotheses agree on them, and the translation is spoken.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, TypeVar, assert_never

import msgspec

from connections.api.realtime.encoder import EventLines
from connections.api.realtime.endpoint import HandshakeRequest, SessionContext, SessionEndpoint
from connections.api.realtime.events import InvalidEvent
from connections.api.realtime.translation.session import (
    AnyClientEvent,
    AudioAppend,
    AudioDelta,
    Interpretation,
    QueuedText,
    SessionClose,
    SessionUpdate,
    TextAppend,
    TranslationEventEncoder,
    TranslationFrame,
    TranslationOptions,
    TranslationSession,
    closed,
)
from connections.api.realtime.voice import decoded
from connections.api.requests import NO_AUDIO
from connections.connection import Connection, Handler, error_frame
from connections.http import EndpointName
from connections.limiters import Limiters
from connections.outbox import Outbox
from connections.protocol import codec, frames
from connections.protocol.audio import AudioInput, AudioOutput, AudioStart
from connections.protocol.base import INTERPRET, Grant
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error
from connections.spoken_reply import converted
from connections.turn_taking import LocalAgreement
from connections.voice import VoiceService
from connections.websocket_endpoint import MultilineTransport, WebSocketTransport
from engine.served_models import ServedModel
from sessions.errors import Conflict, NotFound, Overloaded, Refused
from sessions.languages import AUTO
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.service import Sessions
from sessions.translation.sentences import is_spaceless, units
from sessions.turn.interfaces import Grown, Growth
from speech.clauses import Clause, Clauses
from speech.errors import RecognitionOverload, RecognizerLost, VoiceFailed
from speech.interfaces import (
    RAW_RATE,
    Coding,
    Heard,
    Listening,
    Partial,
    Paused,
    Started,
    Stopped,
    Voice,
)
from speech.listening import RecognitionStream

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
NO_EXPIRY = 253_402_300_799
"""The end of the year 9999: a session ends with its client's token, and has no end of its own."""
PendingWork = Coroutine[Any, Any, None]
T = TypeVar("T")
MAX_ATTEMPTS = 5
"""How often an interpretation's start or growth is tried if refusals are temporary."""
RETRY_MS = 500
"""The pause before a retry, if the refusal names none."""
DRAIN_TIMEOUT_S = 10.0
"""How long the end of a session waits for a late reader."""
_STALLED = Close(CloseCode.OVERLOAD, "The translation failed; reconnect.")
MAX_BUFFER_BYTES = 2 * RAW_RATE * 5
"""Bytes of sound that wait until the recognizer listens: five seconds."""
FINISH_TIMEOUT_S = 10.0
"""How long the end of a session waits for the last words."""
_RECOGNIZER_LOST = "The recognizer failed and is restarting. What was being said is lost."
PART_BYTES = 2 * RAW_RATE // 5
"""Sound of one event: 200 ms."""
MAX_UNREAD_BYTES = 128 * 1024
"""Bytes that may wait for a late reader before more sound is sent."""
POLL_S = 0.05
MAX_CLAUSES = 64
"""Clauses that may wait to be spoken; further ones are sent as text only."""
_ESPEAK_CODES = {"zh": "cmn"}
"""The voice program's codes that differ from language tags."""
_BEHIND = "Speech synthesis is too slow: part of the translation is sent as text only."


def decode(message: str | bytes) -> AnyClientEvent:
    """Return one client event. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class TranslationEndpoint(SessionEndpoint):
    """Serves clients of translation sessions: connections like native ones, with other frames."""

    KIND = EndpointName.TRANSLATIONS
    PATH = "/v1/realtime/translations"

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
            if handshake_info.caller.identity.expires_at is None
            else int(handshake_info.caller.identity.expires_at),
            voices=() if self.spoken is None else self.spoken.voices,
        )
        encoder = TranslationEventEncoder()
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=EventLines(encoder.encode).encode,
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
        async with self.lifecycle.registered(connection):
            connection.push(TranslationFrame(events=(session.created(),)))
            with self.access.watch(handshake_info.caller.identity, connection):
                async with asyncio.TaskGroup() as tasks:
                    speaking = None if speech_output is None else tasks.create_task(speech_output.run())
                    try:
                        await connection.serve(handler, decode)
                    finally:
                        if speaking is not None:
                            speaking.cancel()


class TranslationsHandler:
    """Handles one session's events. `inner`: answers frames. Only one task at a time processes the queue."""

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
        """Decide at once; return the work on the queue, unless it is running. Raises Refused."""
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
        """Change the options. Raises Refused."""
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

    def _listen(self, connection: Connection, audio: str) -> PendingWork | None:
        """Take sound; at the first, return the work of listening. Raises Refused."""
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
        slot = self._voice_service.slot(connection.caller.subject)
        return self._run_speech_input(speech_input, slot)

    async def _run_speech_input(self, speech_input: SpeechInput, slot: AbstractContextManager[None]) -> None:
        """Listen in a slot. Raises Overloaded."""
        try:
            with slot:
                async with asyncio.TaskGroup() as self._speech_tasks:
                    await speech_input.run()
        finally:
            speech_input.ended.set()
            self._speech_input = self._speech_tasks = None

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
        """Process part of the queue; return whether there may be more. Refusals are sent, their text is dropped."""
        part, current = self._session.queue.head(), self._encoder.current
        options = self._session.settings.options if part is None else part.options
        is_last = options != self._options or (part is None and self._session.is_closing)
        if current is not None and is_last:
            await self._grow(connection, current, QueuedText("", self._options or options, ends=True))
        elif part is None:
            return await self._close(connection)
        elif current is not None:
            taken = self._session.queue.take(current.chars)
            if taken.text or taken.ends:
                await self._grow(connection, current, taken)
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
        """Begin an interpretation, which ends if the client leaves."""
        start = frames.InterpretStart(
            client_msg_id=f"translation_{secrets.token_hex(12)}",
            conversation_id=self._session.conversation_id,
            model=self._session.model,
            source=options.source,
            target=options.target or "",  # nothing is taken before it is set
            publish_policy=options.publish_policy,
            wait_words=options.wait_words,
        )
        begun = self._encoder.begin(start.client_msg_id)
        if self._speech_output is not None and self._voice_service is not None:
            voice = options.voice
            if voice is None and self._has_audio_input:  # its client speaks
                voice = voice_for(self._voice_service.voices, options.target or "")
            self._speech_output.begin(voice)
        try:
            await _retry(partial(self._submit, connection, start))
        except BaseException as why:
            self._encoder.current = None
            if not isinstance(why, Refused):
                raise
            connection.push(error_frame(why, self._session.queue.drop().ref))
            if begun.turn_id is not None:  # the store took the start, but could not confirm it
                await self._abandon(connection, begun)
        else:
            self._options = options

    async def _submit(self, connection: Connection, frame: frames.Request) -> None:
        """Have a frame answered. Raises Refused."""
        if (slow := self._inner.handle(connection, frame)) is not None:
            await slow

    async def _grow(self, connection: Connection, current: Interpretation, part: QueuedText) -> None:
        """Grow an interpretation. Text that is too late, or collides with growth by others, is queued again."""
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
            if why.retryable:  # it is not known how much of the text was stored
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
        """Cancel an interpretation of unknown state: it would block the next one of its conversation."""
        self._encoder.current = None
        if abandoned.over.is_set():
            return
        if abandoned.turn_id is None:  # the client reads too late for it to be known; leaving ends it, too
            connection.shut(_STALLED)
            return
        conversation_id = self._session.conversation_id
        try:
            await self._submit(
                connection, frames.Cancel(turn_id=abandoned.turn_id, conversation_id=conversation_id)
            )
        except Refused as why:
            connection.push(error_frame(why, None))
            connection.shut(_STALLED)


def _audio_start(options: TranslationOptions) -> AudioStart:
    return AudioStart(language=None if options.source == AUTO else options.source)


async def _retry(act: Callable[[], Awaitable[T]]) -> T:
    """Repeat an act until it succeeds, while that may help. Raises Refused."""
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


class Transcript:
    """Makes a text of speech, which is never revised. The words between two silences are a line.

    Words, or characters of scripts without blanks, are published once two successive hypotheses agree on them
    (LocalAgreement-2).
    """

    def __init__(self) -> None:
        self._begin()

    def take(self, heard: Heard) -> str:
        """Return what a hypothesis adds."""
        match heard:
            case Partial(text=text, is_new=True) | Paused(text=text):
                return self._agree(units(text.strip()))
            case Stopped(text=text):
                found, agreed = units(text.strip()), len(self._agreement.agreed)
                rest, is_line = self._joined(found, agreed, len(found)).rstrip(), bool(agreed or found)
                self._begin()
                return f"{rest}\n" if is_line else ""
            case Started():
                self._begin()
        return ""

    def _begin(self) -> None:
        self._agreement = LocalAgreement()
        self._ends_blank = True

    def _agree(self, found: list[str]) -> str:
        at = len(self._agreement.agreed)
        return self._joined(found, at, at + self._agreement.take(found))

    def _joined(self, found: list[str], start: int, end: int) -> str:
        """Return units as the source has them; a word is complete once a blank follows."""
        text = ""
        for at in range(start, end):
            unit, is_last = found[at], at + 1 == len(found)
            between = " " if unit[0].isspace() and not self._ends_blank else ""
            is_followed = not is_spaceless(unit[-1]) if is_last else found[at + 1][0].isspace()
            text += between + unit.strip() + (" " if is_followed else "")
            self._ends_blank = is_followed
        return text


class SpeechInput:
    """One client's speech. `on_text`: takes more of the source; `language`: a code of the recognizer's; None: any."""

    def __init__(
        self,
        voice_service: VoiceService,
        connection: Connection,
        on_text: Callable[[str], None],
        *,
        language: str | None = None,
    ) -> None:
        self._voice_service = voice_service
        self._connection = connection
        self._on_text = on_text
        self._language = language
        self._buffer = bytearray()
        self._hearing: RecognitionStream | None = None
        self._is_overloaded = self._is_ending = False
        self.ended = asyncio.Event()

    def feed(self, audio: str) -> None:
        """Take more sound. Never waits. Raises InvalidEvent if it is malformed."""
        samples = decoded(audio, AudioInput(format="pcm16"), "audio")
        try:
            self._feed(samples)
            self._is_overloaded = False
        except RecognitionOverload as why:
            if not self._is_overloaded:
                self._is_overloaded = True
                self._connection.push(Error(code="rate_limited", message=str(why)))

    def set_language(self, language: str | None) -> None:
        """Note that later sound is in another language; earlier sound is understood as before."""
        if language == self._language:
            return
        self._language = language
        if self._hearing is not None:
            self._hearing.commit()
            self._hearing = None

    def _feed(self, samples: bytes) -> None:
        """Take samples. Raises RecognitionOverload."""
        if self._hearing is not None:
            self._hearing.feed(samples)
        elif len(self._buffer) + len(samples) > MAX_BUFFER_BYTES:
            raise RecognitionOverload(
                "Audio arrived faster than it can be processed; some of it was dropped."
            )
        else:
            self._buffer += samples

    async def run(self) -> None:
        """Listen while the connection lasts."""
        while not self.ended.is_set():
            try:
                await self._listen()
            except RecognizerLost:
                self._hearing = None
                if self._is_ending:
                    self.ended.set()
                self._connection.push(Error(code="speech_unavailable", message=_RECOGNIZER_LOST))

    async def _listen(self) -> None:
        """Listen in one language, up to the end. Raises RecognizerLost."""
        transcript = Transcript()
        listening = Listening(coding=Coding.PCM16, rate=RAW_RATE, language=self._language)
        async with self._voice_service.ear.listen(listening, owner=str(self._connection.owner)) as hearing:
            if self._language != listening.language:  # it changed while the recognizer started
                return
            self._hearing = hearing
            hearing.feed(bytes(self._buffer))
            self._buffer.clear()
            if self._is_ending:
                hearing.commit()
            async for heard in hearing.events():
                if text := transcript.take(heard):
                    self._on_text(text)
                if isinstance(heard, Stopped) and heard.is_committed:
                    if self._hearing is hearing:  # otherwise the language has changed
                        self.ended.set()
                    return

    async def end(self) -> None:
        """End the sound; return once the rest is understood."""
        self._is_ending = True
        if self._hearing is not None:
            self._hearing.commit()
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await self.ended.wait()


def voice_for(names: Sequence[str], language: str) -> str | None:
    """Return the first voice of a language, by its tag; None if there is none."""
    primary = language.replace("_", "-").partition("-")[0].lower()
    wanted = _ESPEAK_CODES.get(primary, primary)
    return next((name for name in names if name.partition("-")[0].lower() == wanted), None)


class SpeechOutput:
    """The speech of one session. `name`: of the current voice; None: nothing is spoken."""

    def __init__(self, voice: Voice, connection: Connection) -> None:
        self.name: str | None = None
        self._voice = voice
        self._connection = connection
        self._clauses = Clauses()
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._is_overloaded = False

    def begin(self, name: str | None) -> None:
        """Change the voice from now on; earlier text is spoken by the voice before."""
        self._end()
        self.name = name

    def feed(self, text: str) -> None:
        """Take more of the translation."""
        self._put(self._clauses.feed(text))

    async def finish(self) -> None:
        """End the translation; return once all of its sound was sent."""
        self._end()
        await self._waiting.join()

    def _end(self) -> None:
        self._put(self._clauses.finish())
        self._clauses = Clauses()

    def _put(self, clauses: Iterable[Clause]) -> None:
        for clause in clauses:
            if self.name is None or not any(one.isalnum() for one in clause.text):
                continue
            if self._waiting.qsize() < MAX_CLAUSES:
                self._is_overloaded = False
                self._waiting.put_nowait((clause.text, self.name))
            elif not self._is_overloaded:
                self._is_overloaded = True
                self._connection.push(Error(code="rate_limited", message=_BEHIND))

    async def run(self) -> None:
        """Speak until cancelled."""
        while True:
            clause, name = await self._waiting.get()
            try:
                await self._speak(clause, name)
            except VoiceFailed as failed:
                self._connection.push(Error(code="speech_unavailable", message=str(failed)))
            finally:
                self._waiting.task_done()

    async def _speak(self, clause: str, name: str) -> None:
        """Speak one clause. Raises VoiceFailed."""
        spoken = await self._voice.speak(clause, voice=name)
        pcm = await asyncio.to_thread(converted, spoken.pcm, spoken.rate, AudioOutput(rate=RAW_RATE))
        for at in range(0, len(pcm), PART_BYTES):
            await wait_for_reader(self._connection, MAX_UNREAD_BYTES)
            part = b64encode(pcm[at : at + PART_BYTES]).decode()
            self._connection.push(TranslationFrame(events=(AudioDelta(delta=part),)))


async def wait_for_reader(connection: Connection, most: int) -> None:
    """Return once at most `most` bytes wait for the reader, or it has left."""
    while connection.waiting_bytes > most and not connection.closed:  # noqa: ASYNC110 - connections tell nobody that their reader caught up
        await asyncio.sleep(POLL_S)
