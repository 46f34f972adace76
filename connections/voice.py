"""Spoken conversations: speech becomes a message, and its reply is played until it was heard or is interrupted."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from itertools import count

import msgspec
import structlog

from connections.connection import Connection, Handler, PendingWork, error_frame
from connections.limiters import slot
from connections.protocol import frames
from connections.protocol.audio import (
    AudioClear,
    AudioCommit,
    AudioFrame,
    AudioOutput,
    AudioStart,
    AudioStarted,
    AudioStop,
    AudioStopped,
    Played,
    Sound,
    Speech,
    Transcript,
)
from connections.protocol.base import AUDIO
from connections.protocol.errors import BadFrame, BadParams
from connections.protocol.frames import Error, Frame, Params, Send
from connections.spoken_reply import SpokenReply
from connections.turn_taking import (
    Action,
    ReplyAction,
    SpeechEdge,
    SubmitMessage,
    TranscriptUpdate,
    TurnTakingPolicy,
)
from engine.vision.image import Detail
from sessions.errors import Conflict, NotFound, Overloaded, Refused
from sessions.limits.shares import FairShare, Subject
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.turn import Cancel
from speech.errors import RecognitionOverload, RecognizerLost, VoiceFailed
from speech.espeak import Espeak
from speech.interfaces import WIDTH, Heard, Listening, Stopped
from speech.recognition import RecognitionStream, StreamingRecognizer

BUFFER_S, MIN_FRAME_BYTES = 8.0, 64
"""The most seconds of sound that wait for a recognizer's start, and the fewest bytes that a frame counts as."""
CHANGE_S = 0.05
"""The pause before listening begins again with other settings, which may change several times."""
RETRY_S = 0.5
"""The pause before listening is retried after a failure, which also limits the errors sent."""
MAX_REPLIES = 4
"""The most replies that are being spoken, one after another, or wait to be."""
_log = structlog.get_logger("midstream.spoken")


class VoiceMessage(msgspec.Struct, frozen=True):
    """A message, with what its frame has no field for. It counts, and is checked, like any message of its kind.

    `player` speaks the reply; `shown`: the place of each image in the content, and its detail; empty: all images come first.
    """

    send: Send
    player: SpokenReply | None = None
    shown: tuple[tuple[int, Detail], ...] = ()

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was taken back while it was being counted: it must not be sent."""
        return self.player is not None and self.player.is_withdrawn

    @property
    def ref(self) -> str | None:
        """The reference that its answer repeats."""
        return self.send.ref


class VoiceConnection:
    """A connection that may speak, in one conversation at a time.

    `reports_late`: it reports what was heard of a reply after a cut, not while it is played. Then it plays only
    replies to itself, and no reply begins before the end of an utterance is certain.
    """

    reports_late = False

    def __init__(self, voice_service: VoiceService | None, connection: Connection) -> None:
        """`voice_service`: None if this server has no speech recognition."""
        self.connection = connection
        self.start = AudioStart()
        self.inner: Handler[VoiceMessage | AudioStart | frames.Cancel] | None = None  # answers its frames
        self._voice_service = voice_service
        self.conversation: VoiceConversation | None = None  # in which it is listened to
        self.buffer: AudioBuffer | None = None  # sound that waits for a recognizer
        self._recognizing: asyncio.Task[None] | None = None
        self._hearing: RecognitionStream | None = None
        self._stopped: asyncio.Future[AudioStopped] | None = None
        self._stream = 0
        self._is_overloaded = False

    def handle(self, frame: AudioFrame | Sound) -> PendingWork | None:
        """Do quick work at once; `audio.start` returns the work of listening. Raises Refused."""
        match frame:
            case AudioStart():
                return self._begin(frame)
            case Sound():
                self._feed(frame)
            case AudioCommit():
                self._command(frame, lambda hearing: hearing.commit())
            case AudioClear():
                self._command(frame, lambda hearing: hearing.clear())
                if self.conversation is not None:
                    self.conversation.forget()
            case AudioStop():
                self._conversation_of(frame).cut()
                self.stop(AudioStopped(ref=frame.ref, conversation_id=frame.conversation_id, reason="stop"))
            case Played(turn_id=turn_id, audio_ms=ms):
                if self.conversation is not None:
                    self.conversation.played(turn_id, ms)
        return None

    @property
    def is_listening(self) -> bool:
        """Whether sound that comes now is listened to."""
        return self._hearing is not None

    def push(self, frame: Frame) -> None:
        """Send a frame to the connection."""
        self.connection.push(frame)

    def on_action(self, act: Action, *, talking: bool) -> None:
        """Do nothing: this endpoint's clients get frames about it."""

    def message(self, send: Send) -> Send | None:
        """Return the message unchanged."""
        return send

    def refused(self, send: Send) -> None:
        """Do nothing: this endpoint's clients get an `error`."""

    def listening_started(self) -> None:
        """Do nothing when listening begins."""

    def utterance_lost(self) -> None:
        """Do nothing when listening ends for now: the current utterance is lost."""

    def change(self, start: AudioStart) -> None:
        """Listen by other settings from now on. The current utterance is dropped; replies continue."""
        self.start, self._hearing = start, None
        if self.conversation is not None and self.conversation.speaker is self:
            self.conversation.restart(self)
        if self._recognizing is not None:
            self._recognizing.cancel()

    def feed(self, samples: bytes) -> None:
        """Take the microphone's sound, which may wait for a recognizer's start. Raises BadFrame."""
        if len(samples) % WIDTH:
            raise BadFrame("pcm16 audio must have two bytes per sample.")
        if self._hearing is None:
            if self.buffer is not None:
                self.buffer.put(lambda hearing: hearing.feed(samples), len(samples))
            return
        try:
            self._hearing.feed(samples)
            self._is_overloaded = False
        except RecognitionOverload as why:
            if not self._is_overloaded:
                self._is_overloaded = True
                self.push(Error(code="rate_limited", message=str(why), retryable=True))

    def stop(self, reason: AudioStopped) -> None:
        """Stop listening; the first reason counts."""
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(reason)

    async def send_message(self, request: VoiceMessage) -> None:
        """Send a message for the connection; do nothing if the connection has ended. Raises Refused."""
        if self.inner is not None and (slow := self.inner.handle(self.connection, request)) is not None:
            await slow

    def _begin(self, start: AudioStart) -> PendingWork:
        if AUDIO not in self.connection.features:
            raise BadParams("requires the feature `audio` in `hello`.", field="audio.start")
        if self._voice_service is None:
            raise BadParams("is not available: this server has no speech recognition.", field="audio.start")
        self._check_free()
        self._voice_service.check(start)
        return self._listen(self._voice_service, start)

    def _check_free(self) -> None:
        """Raise Conflict if the connection listens already."""
        if self.conversation is not None:
            raise Conflict("This connection is already sending audio: send audio.stop first.")

    async def _listen(self, voice_service: VoiceService, start: AudioStart) -> None:
        """Listen until `stop`. Raises Refused."""
        await voice_service.attach(self.connection, start.conversation_id)
        self._check_free()
        with voice_service.talking(self.connection, start.conversation_id) as conversation:
            self.conversation, self.start = conversation, start
            self._stopped = asyncio.get_running_loop().create_future()
            self.buffer = self.buffer or AudioBuffer(start)
            self._stream = (self._stream + 1) % (1 << 16)
            if conversation.speaker is not None:
                conversation.speaker.stop(
                    AudioStopped(conversation_id=start.conversation_id, reason="elsewhere")
                )
            self.push(
                AudioStarted(
                    ref=start.ref,
                    conversation_id=start.conversation_id,
                    stream=self._stream,
                    voice=voice_service.voice_of(start),
                )
            )
            conversation.begin(self)
            try:
                async with asyncio.TaskGroup() as tasks:
                    hearing = tasks.create_task(self._recognize_with_retries(voice_service, conversation))
                    reason = await self._stopped
                    hearing.cancel()
            finally:
                conversation.end(self)
                self.conversation = self.buffer = None
        self.push(reason)

    async def _recognize_with_retries(
        self, voice_service: VoiceService, conversation: VoiceConversation
    ) -> None:
        """Listen; if the recognizer is lost, and with it the current utterance, or the settings change, listen again."""
        while True:
            self._recognizing = asyncio.create_task(self._recognize(voice_service, conversation))
            try:
                await self._recognizing
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                await asyncio.sleep(CHANGE_S)  # the settings changed, and may change again
                continue
            except RecognizerLost as lost:
                conversation.forget()
                self.buffer = AudioBuffer(self.start)
                self.push(Error(code="speech_unavailable", message=str(lost), retryable=True))
            self.utterance_lost()
            await asyncio.sleep(RETRY_S)

    async def _recognize(self, voice_service: VoiceService, conversation: VoiceConversation) -> None:
        start, detection = self.start, self.start.turn_detection
        listening = Listening(
            rate=start.input.rate,
            detects=detection.type == "vad",
            silence_ms=detection.silence_ms,
            unfinished_ms=detection.unfinished_ms,
            finished_ms=detection.finished_ms,
            threshold=detection.threshold,
            language=voice_service.language_of(start),
        )
        async with voice_service.ear.listen(listening, owner=str(self.connection.owner)) as hearing:
            if self.buffer is not None:
                self.buffer.flush(hearing)
            self._hearing, self.buffer = hearing, None
            self.listening_started()
            try:
                async for heard in hearing.events():
                    if conversation.speaker is self:
                        conversation.feed(heard)
            finally:
                self._hearing = None

    def _feed(self, sound: Sound) -> None:
        """Take sound; the sound of an ended stream is dropped."""
        if not self._stream:
            raise BadFrame("Audio arrived before audio.start.")
        if sound.stream == self._stream:
            self.feed(sound.samples)

    def _conversation_of(self, frame: AudioCommit | AudioClear | AudioStop) -> VoiceConversation:
        if self.conversation is None or self.conversation.conversation_id != frame.conversation_id:
            raise BadParams(
                "names a conversation without audio on this connection: send audio.start first.",
                field="conversation_id",
            )
        return self.conversation

    def _command(self, frame: AudioCommit | AudioClear, what: Callable[[RecognitionStream], None]) -> None:
        self._conversation_of(frame)
        if self._hearing is not None:
            what(self._hearing)
        elif self.buffer is not None:
            self.buffer.put(what)


class AudioBuffer:
    """Sound that waits for a recognizer's start: `BUFFER_S` at most; more is dropped."""

    def __init__(self, start: AudioStart) -> None:
        self._bytes_left = int(start.input.rate * WIDTH * BUFFER_S)
        self._waiting: list[Callable[[RecognitionStream], None]] = []

    def put(self, what: Callable[[RecognitionStream], None], size: int = MIN_FRAME_BYTES) -> None:
        """Keep a command, or sound of a size in bytes, if it fits."""
        self._bytes_left -= max(size, MIN_FRAME_BYTES)
        if self._bytes_left >= 0:
            self._waiting.append(what)

    def flush(self, hearing: RecognitionStream) -> None:
        """Hand everything over, in order."""
        for what in self._waiting:
            what(hearing)


class VoiceConversation:
    """The speech of one conversation. It outlives its connection while a reply waits for a new connection."""

    def __init__(
        self,
        *,
        owner: Owner,
        conversation_id: str,
        sessions: Sessions,
        voice: Espeak | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tasks` runs the replies."""
        self.owner, self.conversation_id = owner, conversation_id
        self.speaker: VoiceConnection | None = None
        self._sessions = sessions
        self._voice = voice
        self._tasks = tasks
        self._replies: list[SpokenReply] = []
        self._guess: SpokenReply | None = None
        self._streams = count(1)
        self._current_utterance_id, self._attempts = "", count(1)
        self._turn_taking = _policy(AudioStart())

    @property
    def is_talking(self) -> bool:
        """Whether a reply is being made or played."""
        return any(not reply.is_over for reply in self._replies)

    @property
    def is_idle(self) -> bool:
        """Whether nobody speaks and no reply is spoken."""
        return self.speaker is None and not self._replies

    def begin(self, speaker: VoiceConnection) -> None:
        """Begin with a speaker. Waiting replies continue for it, or end at what was heard if it can't play them.

        The utterance of another speaker is dropped.
        """
        self.restart(speaker)
        self.speaker = speaker
        for reply in [one for one in self._replies if not one.is_over]:
            if speaker.reports_late:
                self._cancel(reply)
            else:
                reply.attach(speaker.push)

    def restart(self, speaker: VoiceConnection) -> None:
        """Take the rules of a speaker's settings. The current utterance is dropped."""
        self.forget()
        self._turn_taking = _policy(speaker.start, guesses=not speaker.reports_late)

    def end(self, speaker: VoiceConnection) -> None:
        """End with a speaker that has left, or was replaced by another one."""
        if self.speaker is speaker:
            self.forget()
            self.speaker = None
            for reply in self._replies:
                reply.detach(speaker.start.grace_s)

    def feed(self, heard: Heard) -> None:
        """Act on an event of the recognizer."""
        for act in self._turn_taking.heard(heard, talking=self.is_talking):
            self._on_action(act)
        if isinstance(heard, Stopped):
            self._current_utterance_id = ""

    def forget(self) -> None:
        """Drop the current utterance."""
        for act in self._turn_taking.lost():
            self._on_action(act)
        self._current_utterance_id = ""

    async def answer(self, speaker: VoiceConnection, send: Send, output: AudioOutput) -> None:
        """Have a typed message answered, and the reply played to a speaker. Raises Overloaded.

        Cancelling the wait does not end the reply: that ends at what was heard, or continues for another speaker.
        """
        await asyncio.shield(self._begin_turn(speaker, send, output, is_guess=False))

    def cut(self) -> None:
        """End the current reply, at what was heard of it."""
        for reply in list(self._replies):
            self._cancel(reply)

    def played(self, turn_id: str, ms: int) -> None:
        """Note how much of a turn's sound was played. After the turn was cut, that comes too late."""
        for reply in list(self._replies):
            if reply.turn_id == turn_id:
                reply.played(ms)

    def _on_action(self, act: Action) -> None:
        if self.speaker is not None:
            self.speaker.on_action(act, talking=self.is_talking)
        match act:
            case SpeechEdge(began, at_ms):
                self._push(
                    Speech(
                        conversation_id=self.conversation_id,
                        state="started" if began else "stopped",
                        at_ms=at_ms,
                    )
                )
            case TranscriptUpdate(text, final):
                self._push(
                    Transcript(
                        conversation_id=self.conversation_id,
                        text=text,
                        final=final,
                        utterance_id=self._utterance_id(),
                    )
                )
            case SubmitMessage(text, is_guess):
                self._submit(text, is_guess=is_guess)
            case ReplyAction.CUT:
                self.cut()
            case ReplyAction.CONFIRM | ReplyAction.ROLL_BACK if self._guess is not None:
                guess, self._guess = self._guess, None
                if act is ReplyAction.CONFIRM:
                    guess.confirm()
                else:
                    self._roll_back(guess)

    def _utterance_id(self) -> str:
        """Return the id of the current utterance, made when it is first needed."""
        if not self._current_utterance_id:
            self._current_utterance_id, self._attempts = f"utterance_{secrets.token_urlsafe(12)}", count(1)
        return self._current_utterance_id

    def _push(self, frame: Transcript | Speech | Error) -> None:
        if self.speaker is not None:
            self.speaker.push(frame)

    def _submit(self, text: str, *, is_guess: bool) -> None:
        speaker = self.speaker
        if speaker is None:
            return
        message = f"{self._utterance_id()}.{next(self._attempts)}"
        start = speaker.start
        send = Send(
            ref=message,
            client_msg_id=message,
            conversation_id=self.conversation_id,
            content=text,
            on_busy="interrupt" if start.turn_detection.interrupt else "enqueue",
            grace_s=start.grace_s,
            params=Params(model=start.model),
        )
        if (prepared := speaker.message(send)) is None:
            return
        try:
            self._begin_turn(speaker, prepared, start.output, is_guess=is_guess)
        except Overloaded as why:
            self._push(error_frame(why, prepared.ref))
            speaker.refused(prepared)

    def _begin_turn(
        self, speaker: VoiceConnection, send: Send, output: AudioOutput | None, *, is_guess: bool
    ) -> asyncio.Task[None]:
        """Have a message answered, and the reply played to a speaker. Raises Overloaded."""
        if len(self._replies) >= MAX_REPLIES:
            raise Overloaded("Too many replies are waiting to be spoken. Play one first.")
        reply = None
        if output is not None and self._voice is not None:
            reply = SpokenReply(
                self._voice,
                output,
                conversation_id=self.conversation_id,
                stream=next(self._streams) % (1 << 16),
                cut=self._cancel,
                reports_late=speaker.reports_late,
                is_guess=is_guess,
            )
            if is_guess:
                self._guess = reply
            reply.attach(speaker.push)
            self._replies.append(reply)
        return self._tasks.create_task(self._run_turn(speaker, VoiceMessage(send, reply), reply))

    async def _run_turn(
        self, speaker: VoiceConnection, request: VoiceMessage, reply: SpokenReply | None
    ) -> None:
        """Have a message answered, and the reply played."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if reply is not None:
                    tasks.create_task(self._play(reply))
                try:
                    await speaker.send_message(request)
                except Refused as why:
                    speaker.push(error_frame(why, request.ref))
                    if reply is not None:
                        reply.stop()
                # the message was withdrawn, or its sender has left
                if reply is not None and not reply.turn_id:
                    reply.stop()
        except Exception:  # noqa: BLE001 - a task's boundary: this reply is not spoken, the others continue
            _log.exception("reply not spoken", conversation_id=self.conversation_id)
        finally:
            if reply is not None:
                reply.stop()
                self._replies.remove(reply)

    async def _play(self, reply: SpokenReply) -> None:
        try:
            await reply.run()
        except VoiceFailed as failed:
            self._push(Error(code="speech_unavailable", message=str(failed), retryable=True))

    def _cancel(self, reply: SpokenReply) -> None:
        """End its turn at what was heard. If its message is still being counted, its turn ends when it begins."""
        if not reply.turn_id:
            reply.stop()
            return
        cancel = Cancel(
            conversation_id=self.conversation_id, turn_id=reply.turn_id, seen_off=reply.heard, rollback=False
        )
        self._sessions.turns.cancel(self.owner, cancel)

    def _roll_back(self, guess: SpokenReply) -> None:
        """Undo the guess's message and turn, whatever their state."""
        if not guess.turn_id:
            guess.withdraw()
            return
        cancel = Cancel(
            conversation_id=self.conversation_id, turn_id=guess.turn_id, seen_off=None, rollback=True
        )
        met = self._sessions.turns.cancel(self.owner, cancel)
        if met is None or met.already:  # the turn is over: its exchange is taken back
            self._tasks.create_task(self._roll_back_ended(guess.turn_id))

    async def _roll_back_ended(self, turn_id: str) -> None:
        try:
            await self._sessions.take_back(self.owner, self.conversation_id, turn_id)
        except Refused as why:
            self._push(error_frame(why, None))
        except Exception:  # noqa: BLE001 - a task's boundary: this turn stays, the others continue
            _log.exception("speculative turn not rolled back", conversation_id=self.conversation_id)


def _policy(start: AudioStart, *, guesses: bool = True) -> TurnTakingPolicy:
    detection = start.turn_detection
    detects_speech = detection.type == "vad"
    return TurnTakingPolicy(
        interrupts=detects_speech and detection.interrupt,
        interrupt_ms=detection.interrupt_ms,
        guesses=guesses and detects_speech and start.output is not None,
    )


class VoiceService:
    """The spoken conversations of this server. Use `running` around everything else."""

    def __init__(
        self, *, sessions: Sessions, ear: StreamingRecognizer, voice: Espeak | None, slots: int
    ) -> None:
        """`voice`: None if replies are text only; `slots`: the most connections that are listened to at once."""
        self.ear = ear
        self.voice = voice
        self._sessions = sessions
        self._slots = FairShare(slots)
        self._conversations: dict[tuple[Owner, str], VoiceConversation] = {}
        self._tasks = asyncio.TaskGroup()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Speak replies while the context lasts."""
        async with self._tasks:
            try:
                yield
            finally:
                for conversation in self._conversations.values():
                    conversation.cut()

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices, the default first; none if replies are text only."""
        return () if self.voice is None else self.voice.names

    def check(self, start: AudioStart) -> None:
        """Raise BadParams if the request is impossible here."""
        language = self.language_of(start)
        if language is not None and language not in self.ear.languages:
            raise BadParams(f"must be one of {', '.join(self.ear.languages)}.", field="language")
        if start.output is None:
            return
        if self.voice is None:
            raise BadParams("is not available: this server has no voice.", field="output")
        if start.output.voice is not None and start.output.voice not in self.voice.names:
            raise BadParams(
                f"is not a voice of this server. Available voices include {self.voice.names[0]}.",
                field="output.voice",
            )

    def language_of(self, start: AudioStart) -> str | None:
        """Return the code of the requested language; None if none is requested, or the recognizer needs none."""
        language = (start.language or "").partition("-")[0].lower()
        return language if language and self.ear.languages else None

    def voice_of(self, start: AudioStart) -> str | None:
        """Return the voice that will speak."""
        if start.output is None or self.voice is None:
            return None
        return start.output.voice or self.voice.names[0]

    async def attach(self, connection: Connection, conversation_id: str) -> None:
        """Attach a connection to a conversation, as a history request does, so that replies continue for it. Raises Refused."""
        with suppress(NotFound):  # the conversation begins with the first words, which attach the connection
            await self._sessions.history(connection.owner, connection, conversation_id, limit=1)

    @contextmanager
    def talking(self, connection: Connection, conversation_id: str) -> Iterator[VoiceConversation]:
        """Give a connection a place while the block lasts; yield its conversation. Raises Overloaded."""
        with self.slot(connection.caller.subject):
            self._forget_idle()
            key = connection.owner, conversation_id
            if key not in self._conversations:
                self._conversations[key] = VoiceConversation(
                    owner=connection.owner,
                    conversation_id=conversation_id,
                    sessions=self._sessions,
                    voice=self.voice,
                    tasks=self._tasks,
                )
            try:
                yield self._conversations[key]
            finally:
                self._forget_idle()

    def slot(self, subject: Subject) -> AbstractContextManager[None]:
        """Count a connection that is listened to. Raises Overloaded."""
        return slot(self._slots, subject, "The server is busy with other speakers; try again in a moment.")

    def _forget_idle(self) -> None:
        """Forget idle conversations: those without a speaker and without replies."""
        for key in [key for key, conversation in self._conversations.items() if conversation.is_idle]:
            del self._conversations[key]
