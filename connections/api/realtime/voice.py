"""A session's sound: the microphone's sound goes to the recognizer, and replies are played by a clock.

An utterance becomes an item, and a message of the session. Speech over a reply is reported once it ends the reply, so that a
cough empties no player. A guess is reported once it is right.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf

import msgspec

from connections.api.realtime.encoder import RealtimeFrame, Speculation, SpokenReplies, response_id
from connections.api.realtime.events import (
    Cleared,
    Committed,
    Duration,
    InvalidEvent,
    ItemAdded,
    ItemDone,
    Message,
    OutputCleared,
    ServerEvent,
    SpeechStarted,
    SpeechStopped,
    SpokenContent,
    TranscriptCompleted,
    TranscriptDelta,
)
from connections.api.realtime.session import Item, Items, ItemState, RealtimeSession
from connections.api.realtime.settings import AudioConfig
from connections.connection import ChainedWork, Connection, Handler, PendingWork, error_frame
from connections.native.handler import ClientMessage
from connections.protocol.audio import (
    AudioClear,
    AudioCommit,
    AudioInput,
    AudioOutput,
    AudioStart,
    AudioStarted,
    AudioStopped,
    Marks,
    Speech,
    Transcript,
)
from connections.protocol.frames import Cancel, Error, Frame, Send
from connections.spoken_reply import SpokenReply
from connections.turn_taking import Action, ReplyAction, SpeechEdge, TranscriptUpdate
from connections.voice import MAX_REPLIES, VoiceConnection, VoiceConversation, VoiceMessage, VoiceService
from sessions.errors import Refused
from speech.errors import RecognitionOverload, RecognizerLost
from speech.interfaces import Coding, Listening, Stopped

PLAYBACK_TICK_S = 0.05
"""How often the played sound is noted."""
EARLY_AUDIO_S = 10
"""Seconds of early sound that wait until listening begins; more is dropped."""
COMMIT_TIMEOUT_S = 20.0
"""How long a `commit` waits for a recognizer, which may have to be started first."""
RETRY_S = 1.0
"""Pause before a refused start is tried again."""
_TAKEN_ELSEWHERE = (
    "Another connection now has the audio of this conversation. To use audio here again, send session.update."
)
_TRANSLATED_FRAMES = (AudioStarted, Speech, Transcript, Marks)
"""Frames that this endpoint sends in other words."""


class RealtimeVoiceConnection(VoiceConnection):
    """The voice connection of one session. It begins to listen with the first sound, or when a reply is to be spoken."""

    reports_late = True

    def __init__(
        self,
        voice_service: VoiceService,
        connection: Connection,
        *,
        session: RealtimeSession,
        hearing: UtteranceTracker,
        replies: SpokenReplies,
    ) -> None:
        super().__init__(voice_service, connection)
        self._session = session
        self._utterances = hearing
        self._spoken_replies = replies
        self._inner: Handler[ClientMessage] | None = None
        self._playing: list[SpokenReply] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._active: _ListeningSession | None = None
        self._committed_text: asyncio.Future[str] | None = None
        self._early = _EarlyAudio()
        self._retry_at = 0.0

    @asynccontextmanager
    async def running(self, inner: Handler[ClientMessage]) -> AsyncIterator[None]:
        """Listen and play while the context lasts. `inner`: answers frames."""
        self._inner, self.handle_message = inner, inner.handle
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._inner = self.handle_message = None  # breaks a cycle that only the collector would free

    async def ready(self) -> tuple[VoiceConversation, _ListeningSession]:
        """Return the conversation and the listening session once replies can be spoken. Raises InvalidEvent.

        If other settings end a session, the next one is returned.
        """
        while True:
            self.listen()
            if (listens := self._active) is None:
                raise _unavailable()
            if listens.is_over:
                await asyncio.wait((listens.task,))
                continue
            await listens.speaks.wait()
            if self.conversation is not None and not listens.is_over:
                return self.conversation, listens
            if not listens.is_over:
                raise _unavailable()

    def changed(self) -> None:
        """Note that the session's settings changed: what was refused may be tried again."""
        self._retry_at = 0.0
        if self._active is not None:
            self.listen()

    def listen(self) -> None:
        """Start listening with the settings; if listening with others, restart once no reply is played."""
        start, listens = self._settings.start(self._session.conversation_id), self._active
        if listens is None:
            if asyncio.get_running_loop().time() >= self._retry_at:
                self._active = _ListeningSession(start, self._task(self._listen_until_stopped(start)))
        elif (
            listens.start != start
            and not listens.is_over
            and self.conversation
            and not self.conversation.is_talking
        ):
            listens.is_over = True
            self.stop(AudioStopped(conversation_id=self._session.conversation_id, reason="stop"))

    def append(self, audio: str) -> None:
        """Take the microphone's sound, in base64. It is dropped if nothing listens. Raises InvalidEvent."""
        form = self._settings.input
        sound = decoded(audio, form, "audio")
        self.listen()
        if (listens := self._active) is None:
            return
        self._utterances.take(len(sound) * 1000 / _bytes_per_s(form))
        if self.is_listening and listens.start.input == form and not listens.is_over:
            self.feed(sound)
        else:
            self._early.add(sound, form)

    async def commit(self) -> None:
        """Make the current utterance an item with its words. Raises InvalidEvent."""
        if self._active is None:
            raise _no_speech()
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                _, listens = await self.ready()
                await listens.hears.wait()
        except TimeoutError:
            raise _unavailable() from None
        if not self.is_listening:
            raise _unavailable()
        self._committed_text = asyncio.get_running_loop().create_future()
        self._utterances.end_utterance()
        self.handle(AudioCommit(conversation_id=self._session.conversation_id))
        if not await self._committed_text:
            raise _no_speech()

    def clear(self) -> None:
        """Drop the current utterance."""
        self._early.clear()
        self._utterances.forget()
        if self.conversation is not None:
            self.handle(AudioClear(conversation_id=self._session.conversation_id))
        self.connection.push(RealtimeFrame(events=(Cleared(),)))

    async def understand(self, audio: str, field: str) -> str:
        """Return the words of sound not from the microphone, in a slot. Raises InvalidEvent, Overloaded."""
        form, voice_service = self._settings.input, self._voice_service
        assert voice_service is not None  # noqa: S101 - it was created with one
        language = voice_service.language_of(self._settings.start(self._session.conversation_id))
        listening = Listening(coding=Coding(form.format), rate=form.rate, detects=False, language=language)
        sound = decoded(audio, form, field)
        with voice_service.slot(self.connection.caller.subject):
            try:
                async with voice_service.ear.listen(listening, owner=str(self.connection.owner)) as hearing:
                    hearing.feed(sound)
                    hearing.commit()
                    async for heard in hearing.events():
                        if isinstance(heard, Stopped):
                            return heard.text
            except (RecognizerLost, RecognitionOverload) as why:
                raise InvalidEvent(str(why), code="speech_unavailable") from None
        return ""

    async def answer(self, send: Send, output: AudioOutput) -> None:
        """Have a typed message answered, and the reply spoken. Raises InvalidEvent, Overloaded."""
        conversation, _ = await self.ready()
        await conversation.answer(self, send, output)

    def truncate(self, turn_id: str, ms: int) -> PendingWork | None:
        """End a reply at what the client reports as heard, even if it was cut already."""
        self._spoken_replies.report(turn_id, ms)
        reply = next((one for one in self._playing if one.turn_id == turn_id), None)
        if reply is None:
            return None
        was_over = reply.is_over
        reply.stop_at(ms)
        if was_over or self._inner is None:
            return None
        return self._inner.handle(
            self.connection, Cancel(turn_id=turn_id, conversation_id=self._session.conversation_id)
        )

    def clear_output(self) -> PendingWork | None:
        """End the current reply, at what was heard by now. A guess is not played."""
        slows: list[PendingWork] = []
        for turn_id in [
            one.turn_id for one in self._playing if one.turn_id and not (one.is_over or one.is_guess)
        ]:
            if (slow := self.truncate(turn_id, self._spoken_replies.heard_ms(turn_id))) is not None:
                slows.append(slow)
            self.connection.push(RealtimeFrame(events=(OutputCleared(response_id=response_id(turn_id)),)))
        return ChainedWork(_run_in_order(slows), *slows) if slows else None

    def push(self, frame: Frame) -> None:
        """Send a frame to the client, in this endpoint's terms."""
        match frame:
            case AudioStopped(reason="elsewhere"):
                self._retry_at = inf
                self.connection.push(Error(code="audio_taken_elsewhere", message=_TAKEN_ELSEWHERE))
            case AudioStarted():
                if self._active is not None:
                    self._active.speaks.set()
            case _ if not isinstance(frame, (*_TRANSLATED_FRAMES, AudioStopped)):
                self.connection.push(frame)

    def on_action(self, act: Action, *, talking: bool) -> None:
        """Send an action's frames."""
        if act is ReplyAction.CUT:
            for reply in self._playing:
                if not reply.is_over:
                    self._spoken_replies.interrupt(reply.turn_id)
        self._push(self._utterances.on_action(act, talking=talking))
        if isinstance(act, TranscriptUpdate) and act.final:
            self._resolve_commit(act.text)

    def message(self, send: Send, *, is_guess: bool) -> Send | None:
        """Make the utterance an item; return the message if the session answers at once."""
        worded, frames = self._utterances.message(send, is_guess=is_guess)
        self._push(frames)
        return worded

    def refused(self, send: Send) -> None:
        """Let the utterance wait as an item."""
        self._push(self._utterances.refused(send.client_msg_id))

    async def send_message(self, request: VoiceMessage) -> None:
        """Send a message for the connection. Raises Refused."""
        if isinstance(request.player, SpokenReply):
            self._playing = [*self._playing[1 - MAX_REPLIES :], request.player]
            self._task(self._play(request.player))
        shown = self._session.image_positions(request.send.client_msg_id)
        try:
            await super().send_message(msgspec.structs.replace(request, shown=shown))
        except BaseException:
            self.refused(request.send)
            raise
        if request.is_withdrawn and isinstance(request.player, SpokenReply) and not request.player.turn_id:
            self._push(
                [Speculation(request_id=request.send.client_msg_id, status="void")]
            )  # no turn of the message will end

    def listening_started(self) -> None:
        """Listen to early sound first."""
        if self._active is None or self._active.is_over:
            return
        if early := self._early.take(self.start.input):
            self.feed(early)
        self._active.hears.set()

    def listening_stopped(self) -> None:
        """Drop the current utterance, and sound that nobody listened to."""
        if self._active is not None:
            self._active.hears.clear()
        self._early.clear()
        self._utterances.forget()
        self._resolve_commit("")

    @property
    def _settings(self) -> AudioConfig:
        assert self._session.settings.sound is not None  # noqa: S101 - no session has a microphone otherwise
        return self._session.settings.sound

    def _task(self, work: PendingWork) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen_until_stopped(self, start: AudioStart) -> None:
        """Listen until a stop or a refusal."""
        try:
            if self._inner is not None and (slow := self._inner.handle(self.connection, start)) is not None:
                await slow
        except Refused as why:
            self._retry_at = asyncio.get_running_loop().time() + RETRY_S
            self.connection.push(error_frame(why, None))
        finally:
            listens, self._active = self._active, None
            self._resolve_commit("")
            self._utterances.forget()
            if listens is not None:
                if not listens.is_over:  # no other session follows
                    self._early.clear()
                listens.speaks.set()
                listens.hears.set()

    async def _play(self, reply: SpokenReply) -> None:
        while not reply.is_over:
            await asyncio.sleep(PLAYBACK_TICK_S)
            reply.played(self._spoken_replies.heard_ms(reply.turn_id))
        self._spoken_replies.stop(reply.turn_id, reply.played_ms)

    def _resolve_commit(self, text: str) -> None:
        if self._committed_text is not None and not self._committed_text.done():
            self._committed_text.set_result(text)

    def _push(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.connection.push(frame)


class _ListeningSession:
    """A listening session with its settings. `is_over`: a stop was requested.

    `speaks`: replies can be spoken; `hears`: the recognizer listens. Both are set at the end, too.
    """

    __slots__ = ("hears", "is_over", "speaks", "start", "task")

    def __init__(self, start: AudioStart, task: asyncio.Task[None]) -> None:
        self.start = start
        self.task = task
        self.is_over = False
        self.speaks = asyncio.Event()
        self.hears = asyncio.Event()


class _EarlyAudio:
    """Early sound in one coding; sound in another coding replaces it."""

    __slots__ = ("_form", "_sound")

    def __init__(self) -> None:
        self._form = AudioInput()
        self._sound = bytearray()

    def add(self, sound: bytes, form: AudioInput) -> None:
        """Keep it, up to `EARLY_AUDIO_S`."""
        if form != self._form:
            self._form = form
            self._sound.clear()
        if len(self._sound) + len(sound) <= EARLY_AUDIO_S * _bytes_per_s(form):
            self._sound += sound

    def take(self, form: AudioInput) -> bytes:
        """Return the sound in this coding, once."""
        sound = bytes(self._sound) if form == self._form else b""
        self._sound.clear()
        return sound

    def clear(self) -> None:
        """Drop it."""
        self._sound.clear()


async def _run_in_order(slows: Iterable[PendingWork]) -> None:
    for slow in slows:
        await slow


def decoded(audio: str, form: AudioInput, field: str) -> bytes:
    """Return sound from base64. Raises InvalidEvent."""
    try:
        sound = b64decode(audio, validate=True)
    except ValueError:
        raise InvalidEvent("must be base64.", field=field) from None
    if form.format == "pcm16" and len(sound) % 2:
        raise InvalidEvent("must have two bytes per sample.", field=field)
    return sound


def _bytes_per_s(form: AudioInput) -> int:
    return form.rate * (2 if form.format == "pcm16" else 1)


def _unavailable() -> InvalidEvent:
    why = "No speech model is available at the moment; try again."
    return InvalidEvent(why, code="speech_unavailable")


def _no_speech() -> InvalidEvent:
    why = "No speech was recognized."
    return InvalidEvent(why, code="input_audio_buffer_commit_empty")


class UtteranceTracker:
    """One session's utterances."""

    def __init__(self, items: Items, session: RealtimeSession) -> None:
        self._items = items
        self._session = session
        self._utterance = _Utterance()
        self._guess: tuple[str, str] | None = (
            None  # its `request_id`, and the words that were understood at a pause
        )
        self._sent_ms = self._committed_ms = 0.0  # received sound, and that of the ended utterance

    def take(self, ms: float) -> None:
        """Count received sound."""
        self._sent_ms += ms

    def end_utterance(self) -> None:
        """Note that the current utterance is complete."""
        self._committed_ms, self._sent_ms = self._sent_ms, 0.0

    def forget(self) -> None:
        """Forget the sound so far: it is not part of the next utterance."""
        self._sent_ms = self._committed_ms = 0.0

    def on_action(self, act: Action, *, talking: bool) -> list[Frame]:  # noqa: PLR0911 - one for each kind
        """Return an action's frames. `talking`: a reply is being made or played."""
        match act:
            case SpeechEdge(True, at_ms):
                self._utterance = _Utterance(started_ms=at_ms)
                return [] if talking and self._interrupts else self._start()
            case SpeechEdge(False, at_ms):
                if self._utterance.is_committed:  # without detection, this one is all sound since
                    self._utterance = _Utterance()
                self._utterance.stopped_ms = at_ms
                self._utterance.ms = self._duration_ms()
                return self._stop() if self._utterance.is_announced else []
            case TranscriptUpdate(text, False):
                return self._extend_transcript(text) if self._utterance.is_announced else []
            case ReplyAction.CUT if (
                not self._utterance.is_announced and self._utterance.started_ms is not None
            ):
                stop = [] if self._utterance.stopped_ms is None else self._stop()
                return [*self._start(), *stop]
            case ReplyAction.CONFIRM if self._guess is not None:
                (request_id, text), self._guess = self._guess, None
                sent = self._commit(text, ItemState.PENDING)
                return [*sent, Speculation(request_id=request_id, status="true")]
            case ReplyAction.CONFIRM:  # nothing was sent
                return self._commit(self._utterance.text, ItemState.WAITING)
            case ReplyAction.ROLL_BACK if self._guess is not None:
                (request_id, _), self._guess = self._guess, None
                self._session.requeue(request_id)
                return [Speculation(request_id=request_id, status="false")]
            case _:
                return []

    def message(self, send: Send, *, is_guess: bool) -> tuple[Send | None, list[Frame]]:
        """Return the utterance as a message, and the frames about it; None: it waits for `response.create`."""
        self._utterance.text = send.content
        if not self._creates:
            return None, [] if is_guess else self._commit(send.content, ItemState.WAITING)
        if is_guess:
            self._guess = send.client_msg_id, send.content
            message = self._session.speech_message(send, self._utterance.item_id)
            return message, [Speculation(request_id=send.client_msg_id, status="up")]
        sent = self._commit(send.content, ItemState.WAITING)
        return self._session.speech_message(send, self._utterance.item_id), sent

    def refused(self, request_id: str) -> list[Frame]:
        """Note that a message was refused: its utterance waits as an item."""
        self._session.requeue(request_id)
        if self._guess is not None and self._guess[0] == request_id:
            self._guess = None
        return [Speculation(request_id=request_id, status="void")]

    @property
    def _creates(self) -> bool:
        sound = self._session.settings.sound
        return sound is not None and sound.creates

    @property
    def _interrupts(self) -> bool:
        sound = self._session.settings.sound
        return sound is not None and sound.interrupts

    @property
    def _transcribes(self) -> bool:
        sound = self._session.settings.sound
        return sound is not None and sound.transcription is not None

    def _duration_ms(self) -> int:
        """Return the length of the last utterance in ms; without detection, that of the sound sent for it."""
        utterance, sent_ms = self._utterance, self._committed_ms
        self._committed_ms = 0.0
        if utterance.started_ms is None:
            return round(sent_ms)
        return max(0, (utterance.stopped_ms or 0) - utterance.started_ms)

    def _start(self) -> list[Frame]:
        utterance = self._utterance
        utterance.is_announced = True
        return _frames(SpeechStarted(audio_start_ms=utterance.started_ms or 0, item_id=utterance.item_id))

    def _stop(self) -> list[Frame]:
        return _frames(
            SpeechStopped(audio_end_ms=self._utterance.stopped_ms or 0, item_id=self._utterance.item_id)
        )

    def _extend_transcript(self, text: str) -> list[Frame]:
        """Take the words so far; each text extends the one before."""
        if not self._transcribes or not text.startswith(self._utterance.sent) or text == self._utterance.sent:
            return []
        more, self._utterance.sent = text[len(self._utterance.sent) :], text
        return _frames(TranscriptDelta(item_id=self._utterance.item_id, delta=more))

    def _commit(self, text: str, state: ItemState) -> list[Frame]:
        utterance = self._utterance
        if utterance.is_committed:  # one utterance made a second message, as after `forget`
            self._utterance = utterance = _Utterance()
        utterance.is_committed = True
        is_kept = state is ItemState.WAITING and not self._session.settings.transcribes
        gone = self._session.evict_for(text) if is_kept else []
        item = Item(item_id=utterance.item_id, role="user", text=text, state=state, sound_ms=0)
        if self._session.settings.transcribes:  # nothing will answer it
            previous = self._items.store(msgspec.structs.replace(item, state=ItemState.STORED))
        else:
            previous = self._items.create(item, after=None)
        shown = item.shown()
        if self._transcribes and isinstance(shown, Message):
            unheard = SpokenContent("input_audio", None)
            shown = msgspec.structs.replace(shown, content=(unheard,))
        events: list[ServerEvent] = [
            *gone,
            Committed(previous_item_id=previous, item_id=utterance.item_id),
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        ]
        if self._transcribes:
            usage = Duration(utterance.ms / 1000)
            events.append(TranscriptCompleted(item_id=utterance.item_id, transcript=text, usage=usage))
        return _frames(*events)


class _Utterance:
    """The words between two silences. `sent`: those that its client knows; `ms`: their length."""

    __slots__ = ("is_announced", "is_committed", "item_id", "ms", "sent", "started_ms", "stopped_ms", "text")

    def __init__(self, started_ms: int | None = None) -> None:
        self.item_id = f"item_{secrets.token_hex(12)}"
        self.started_ms = started_ms
        self.stopped_ms: int | None = None
        self.is_announced = self.is_committed = False
        self.text = self.sent = ""
        self.ms = 0


def _frames(*events: ServerEvent) -> list[Frame]:
    return [RealtimeFrame(events=events)]
