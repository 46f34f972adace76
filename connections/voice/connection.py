"""One connection's sound: it begins to speak in a conversation, sends the microphone's sound, and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from connections.connection import Connection, PendingWork
from connections.protocol.audio import (
    AudioClear,
    AudioCommit,
    AudioFrame,
    AudioStart,
    AudioStarted,
    AudioStop,
    AudioStopped,
    Played,
    Sound,
)
from connections.protocol.base import AUDIO
from connections.protocol.errors import BadFrame, BadParams
from connections.protocol.frames import Error, Frame, Send
from connections.voice.conversation import VoiceConversation, VoiceMessage
from connections.voice.service import VoiceService
from connections.voice.turn_taking import Action
from sessions.errors import Conflict
from speech.errors import RecognitionOverload, RecognizerLost
from speech.interfaces import Listening, RecognitionStream
from speech.sound.wav import Coding

MessageHandler = Callable[[Connection, VoiceMessage], PendingWork | None]

PAUSE_MS = 30
"""Silence that may be the end of the utterance: the turn begins, and is taken back if speech continues."""
BUFFER_S, MIN_FRAME_BYTES = 8.0, 64
"""Seconds of sound that wait for a recognizer's start, and the bytes that each frame of it counts for at least."""
RETRY_S = 0.5
"""Pause before listening is tried again after a failure; sound is dropped meanwhile. It bounds the errors sent."""


class VoiceConnection:
    """A connection that may speak, in one conversation at a time. It is that conversation's `Speaker`."""

    reports_late = False

    def __init__(self, voice_service: VoiceService | None, connection: Connection) -> None:
        """`voice_service`: None: this server has no speech recognition."""
        self.connection = connection
        self.start = AudioStart()
        self.handle_message: MessageHandler | None = None
        self._voice_service = voice_service
        self._conversation: VoiceConversation | None = None
        self._hearing: RecognitionStream | None = None
        self._stopping = asyncio.Event()
        self._reason: AudioStopped | None = None
        self._streams = count(1)
        self._stream = 0
        self._is_overloaded = False
        self._buffer: _AudioBuffer | None = None

    def handle(self, frame: AudioFrame | Sound) -> PendingWork | None:
        """Do quick work at once; `audio.start` returns the work of listening. Raises BadFrame, BadParams, Refused."""
        match frame:
            case AudioStart():
                return self._begin(frame)
            case Sound():
                self._feed(frame)
            case AudioCommit():
                self._command(frame, lambda hearing: hearing.commit())
            case AudioClear():
                self._command(frame, lambda hearing: hearing.clear())
                if self._conversation is not None:
                    self._conversation.forget()
            case AudioStop():
                self._conversation_of(frame).cut()
                self.stop(AudioStopped(ref=frame.ref, conversation_id=frame.conversation_id, reason="stop"))
            case Played(turn_id=turn_id, audio_ms=ms):
                if self._conversation is not None:
                    self._conversation.played(turn_id, ms)
        return None

    @property
    def conversation(self) -> VoiceConversation | None:
        """The conversation that it speaks in; None: it is not listened to."""
        return self._conversation

    @property
    def is_listening(self) -> bool:
        """Whether sound that comes now is listened to."""
        return self._hearing is not None

    def push(self, frame: Frame) -> None:
        """Send a frame to the connection."""
        self.connection.push(frame)

    def on_action(self, act: Action, *, talking: bool) -> None:
        """Do nothing: this endpoint's clients get frames about it."""

    def message(self, send: Send, *, is_guess: bool) -> Send | None:  # noqa: ARG002 - other endpoints take their time
        """Return the message unchanged."""
        return send

    def refused(self, send: Send) -> None:
        """Do nothing: this endpoint's clients get an `error`."""

    def listening_started(self) -> None:
        """Do nothing when listening begins."""

    def listening_stopped(self) -> None:
        """Do nothing when listening ends for now: the current utterance is lost."""

    def feed(self, samples: bytes) -> None:
        """Take the microphone's sound. It waits for a recognizer's first start, and is dropped while one is lost.

        Raises BadFrame.
        """
        if self.start.input.format == "pcm16" and len(samples) % 2:
            raise BadFrame("Sound of the format pcm16 has two bytes for each sample.")
        if self._hearing is None:
            if self._buffer is not None:
                self._buffer.put(lambda hearing: hearing.feed(samples), len(samples))
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
        self._reason = self._reason or reason
        self._stopping.set()

    async def send_message(self, request: VoiceMessage) -> None:
        """Send a message for the connection; does nothing if that has gone. Raises Refused, BadParams."""
        if self.handle_message is None:
            return
        if (slow := self.handle_message(self.connection, request)) is not None:
            await slow

    def _begin(self, start: AudioStart) -> PendingWork:
        if AUDIO not in self.connection.features:
            raise BadParams("is for clients that name the feature `audio` in `hello`.", field="audio.start")
        if self._voice_service is None:
            raise BadParams("can't be used: this server has no speech recognition.", field="audio.start")
        self._check_free()
        self._voice_service.check(start)
        return self._listen(self._voice_service, start)

    def _check_free(self) -> None:
        """Raise Conflict if the connection listens already."""
        if self._conversation is not None:
            raise Conflict("This connection is listened to already: send audio.stop first.")

    async def _listen(self, voice_service: VoiceService, start: AudioStart) -> None:
        """Listen until it is stopped. Raises Refused."""
        await voice_service.attach(self.connection, start.conversation_id)
        self._check_free()
        with voice_service.talking(self.connection, start.conversation_id) as conversation:
            self._conversation, self.start, self._reason = conversation, start, None
            self._stopping.clear()
            self._buffer = _AudioBuffer(start)
            self._stream = next(self._streams) % (1 << 16)
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
                await self._until_stopped(voice_service, conversation)
            finally:
                conversation.end(self)
                self._conversation = None
        self._send_stopped()

    def _send_stopped(self) -> None:
        if self._reason is not None:
            self.push(self._reason)

    async def _until_stopped(self, voice_service: VoiceService, conversation: VoiceConversation) -> None:
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._recognize_with_retries(voice_service, conversation))
            await self._stopping.wait()
            hearing.cancel()

    async def _recognize_with_retries(
        self, voice_service: VoiceService, conversation: VoiceConversation
    ) -> None:
        """Listen again after the recognizer was lost, with the current utterance."""
        while True:
            try:
                await self._recognize(voice_service, conversation)
            except RecognizerLost as lost:
                conversation.forget()
                self._buffer = None
                self.push(Error(code="speech_unavailable", message=str(lost), retryable=True))
            self.listening_stopped()
            await asyncio.sleep(RETRY_S)

    async def _recognize(self, voice_service: VoiceService, conversation: VoiceConversation) -> None:
        async with voice_service.ear.listen(
            _listening(self.start, voice_service), owner=str(self.connection.owner)
        ) as hearing:
            if self._buffer is not None:
                self._buffer.flush(hearing)
            self._hearing, self._buffer = hearing, None
            self.listening_started()
            try:
                async for heard in hearing.events():
                    if conversation.speaker is self:
                        conversation.feed(heard)
            finally:
                self._hearing = None

    def _feed(self, sound: Sound) -> None:
        """Take sound; that of an ended stream is dropped."""
        if not self._stream:
            raise BadFrame("Sound came before audio.start.")
        if sound.stream == self._stream:
            self.feed(sound.samples)

    def _conversation_of(self, frame: AudioCommit | AudioClear | AudioStop) -> VoiceConversation:
        if self._conversation is None or self._conversation.conversation_id != frame.conversation_id:
            raise BadParams(
                "names a conversation that this connection does not listen for: begin with audio.start.",
                field="conversation_id",
            )
        return self._conversation

    def _command(self, frame: AudioCommit | AudioClear, what: Callable[[RecognitionStream], None]) -> None:
        self._conversation_of(frame)
        if self._hearing is not None:
            what(self._hearing)
        elif self._buffer is not None:
            self._buffer.put(what)


class _AudioBuffer:
    """Sound that waits for the recognizer's first start: `BUFFER_S` at most; more is dropped."""

    def __init__(self, start: AudioStart) -> None:
        width = 2 if start.input.format == "pcm16" else 1
        self._bytes_left = int(start.input.rate * width * BUFFER_S)
        self._waiting: list[Callable[[RecognitionStream], None]] = []

    def put(self, what: Callable[[RecognitionStream], None], size: int = MIN_FRAME_BYTES) -> None:
        self._bytes_left -= max(size, MIN_FRAME_BYTES)
        if self._bytes_left >= 0:
            self._waiting.append(what)

    def flush(self, hearing: RecognitionStream) -> None:
        for what in self._waiting:
            what(hearing)


def _listening(start: AudioStart, voice_service: VoiceService) -> Listening:
    detection = start.turn_detection
    return Listening(
        coding=Coding(start.input.format),
        rate=start.input.rate,
        detects=detection.type == "vad",
        pause_ms=PAUSE_MS,
        silence_ms=detection.silence_ms,
        unfinished_ms=detection.unfinished_ms,
        finished_ms=detection.finished_ms,
        threshold=detection.threshold,
        language=voice_service.language_of(start),
    )
