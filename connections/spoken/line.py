"""One connection's sound: it begins to speak in a conversation, sends the microphone's sound, and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count

from connections.line.connection import Connection
from connections.spoken.conduct import Act
from connections.spoken.desk import SpokenDesk
from connections.spoken.talk import Said, Talk
from connections.wire.audio import (
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
from connections.wire.errors import BadFrame, BadParams
from connections.wire.features import AUDIO
from connections.wire.frames import Error, Frame, Send
from sessions.errors import Conflict
from speech.contract import Hearing, Listening
from speech.errors import RecognizerLost, TooFarBehind
from speech.sound.wav import Coding

Slow = Coroutine[None, None, None]
Say = Callable[[Connection, Said], Slow | None]

PAUSE_MS = 30
"""Silence that may be the end of the utterance: the turn begins, and is taken back if speech continues."""
EARLY_S, EARLY_LEAST = 8.0, 64
"""Seconds of sound that wait for a recognizer's start, and the bytes that each frame of it counts for at least."""
AGAIN_S = 0.5
"""Pause before listening is tried again after a failure; sound is dropped meanwhile. It bounds the errors sent."""


class SpokenLine:
    """A connection that may speak, in one conversation at a time. It is that conversation's `Speaker`."""

    tells_late = False

    def __init__(self, desk: SpokenDesk | None, connection: Connection) -> None:
        """`desk`: None: this server has no speech recognition."""
        self.connection = connection
        self.start = AudioStart()
        self.say_as_frame: Say | None = None
        self._desk = desk
        self._talk: Talk | None = None
        self._hearing: Hearing | None = None
        self._stopping = asyncio.Event()
        self._reason: AudioStopped | None = None
        self._streams = count(1)
        self._stream = 0
        self._is_behind = False
        self._unheard: _Unheard | None = None

    def handle(self, frame: AudioFrame | Sound) -> Slow | None:
        """Do quick work at once; `audio.start` returns the work of listening. Raises BadFrame, BadParams, Refused."""
        match frame:
            case AudioStart():
                return self._begin(frame)
            case Sound():
                self._feed(frame)
            case AudioCommit():
                self._hear(frame, lambda hearing: hearing.commit())
            case AudioClear():
                self._hear(frame, lambda hearing: hearing.clear())
                if self._talk is not None:
                    self._talk.forget()
            case AudioStop():
                self._talk_of(frame).cut()
                self.stop(AudioStopped(ref=frame.ref, conversation_id=frame.conversation_id, reason="stop"))
            case Played(turn_id=turn_id, audio_ms=ms):
                if self._talk is not None:
                    self._talk.played(turn_id, ms)
        return None

    @property
    def talk(self) -> Talk | None:
        """The conversation that it speaks in; None: it is not listened to."""
        return self._talk

    @property
    def is_heard(self) -> bool:
        """Whether sound that comes now is listened to."""
        return self._hearing is not None

    def tell(self, frame: Frame) -> None:
        """Send a frame to the connection."""
        self.connection.push(frame)

    def heed(self, act: Act, *, talking: bool) -> None:
        """Do nothing: this door's clients get frames about it."""

    def message(self, send: Send, *, is_guess: bool) -> Send | None:  # noqa: ARG002 - other doors take their time
        """Return the message unchanged."""
        return send

    def refused(self, send: Send) -> None:
        """Do nothing: this door's clients get an `error`."""

    def began(self) -> None:
        """Do nothing when listening begins."""

    def ended(self) -> None:
        """Do nothing when listening ends for now: the current utterance is lost."""

    def hear(self, samples: bytes) -> None:
        """Take the microphone's sound. It waits for a recognizer's first start, and is dropped while one is lost.

        Raises BadFrame.
        """
        if self.start.input.format == "pcm16" and len(samples) % 2:
            raise BadFrame("Sound of the format pcm16 has two bytes for each sample.")
        if self._hearing is None:
            if self._unheard is not None:
                self._unheard.put(lambda hearing: hearing.feed(samples), len(samples))
            return
        try:
            self._hearing.feed(samples)
            self._is_behind = False
        except TooFarBehind as why:
            if not self._is_behind:
                self._is_behind = True
                self.tell(Error(code="rate_limited", message=str(why), retryable=True))

    def stop(self, reason: AudioStopped) -> None:
        """Stop listening; the first reason counts."""
        self._reason = self._reason or reason
        self._stopping.set()

    async def say(self, said: Said) -> None:
        """Send a message for the connection; does nothing if that has gone. Raises Refused, BadParams."""
        if self.say_as_frame is None:
            return
        if (slow := self.say_as_frame(self.connection, said)) is not None:
            await slow

    def _begin(self, start: AudioStart) -> Slow:
        if AUDIO not in self.connection.features:
            raise BadParams("is for clients that name the feature `audio` in `hello`.", field="audio.start")
        if self._desk is None:
            raise BadParams("can't be used: this server has no speech recognition.", field="audio.start")
        self._check_free()
        self._desk.check(start)
        return self._listen(self._desk, start)

    def _check_free(self) -> None:
        """Raise Conflict if the connection listens already."""
        if self._talk is not None:
            raise Conflict("This connection is listened to already: send audio.stop first.")

    async def _listen(self, desk: SpokenDesk, start: AudioStart) -> None:
        """Listen until it is stopped. Raises Refused."""
        await desk.attach(self.connection, start.conversation_id)
        self._check_free()
        with desk.talking(self.connection, start.conversation_id) as talk:
            self._talk, self.start, self._reason = talk, start, None
            self._stopping.clear()
            self._unheard = _Unheard(start)
            self._stream = next(self._streams) % (1 << 16)
            if talk.speaker is not None:
                talk.speaker.stop(AudioStopped(conversation_id=start.conversation_id, reason="elsewhere"))
            self.tell(
                AudioStarted(
                    ref=start.ref,
                    conversation_id=start.conversation_id,
                    stream=self._stream,
                    voice=desk.voice_of(start),
                )
            )
            talk.begin(self)
            try:
                await self._until_stopped(desk, talk)
            finally:
                talk.end(self)
                self._talk = None
        self._tell_end()

    def _tell_end(self) -> None:
        if self._reason is not None:
            self.tell(self._reason)

    async def _until_stopped(self, desk: SpokenDesk, talk: Talk) -> None:
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._hear_all(desk, talk))
            await self._stopping.wait()
            hearing.cancel()

    async def _hear_all(self, desk: SpokenDesk, talk: Talk) -> None:
        """Listen again after the recognizer was lost, with the current utterance."""
        while True:
            try:
                await self._hear_on(desk, talk)
            except RecognizerLost as lost:
                talk.forget()
                self._unheard = None
                self.tell(Error(code="speech_unavailable", message=str(lost), retryable=True))
            self.ended()
            await asyncio.sleep(AGAIN_S)

    async def _hear_on(self, desk: SpokenDesk, talk: Talk) -> None:
        async with desk.ear.listen(_listening(self.start, desk), owner=str(self.connection.owner)) as hearing:
            if self._unheard is not None:
                self._unheard.hand_over(hearing)
            self._hearing, self._unheard = hearing, None
            self.began()
            try:
                async for heard in hearing.events():
                    if talk.speaker is self:
                        talk.hear(heard)
            finally:
                self._hearing = None

    def _feed(self, sound: Sound) -> None:
        """Take sound; that of an ended stream is dropped."""
        if not self._stream:
            raise BadFrame("Sound came before audio.start.")
        if sound.stream == self._stream:
            self.hear(sound.samples)

    def _talk_of(self, frame: AudioCommit | AudioClear | AudioStop) -> Talk:
        if self._talk is None or self._talk.conversation_id != frame.conversation_id:
            raise BadParams(
                "names a conversation that this connection does not listen for: begin with audio.start.",
                field="conversation_id",
            )
        return self._talk

    def _hear(self, frame: AudioCommit | AudioClear, what: Callable[[Hearing], None]) -> None:
        self._talk_of(frame)
        if self._hearing is not None:
            what(self._hearing)
        elif self._unheard is not None:
            self._unheard.put(what)


class _Unheard:
    """Sound that waits for the recognizer's first start: `EARLY_S` at most; more is dropped."""

    def __init__(self, start: AudioStart) -> None:
        width = 2 if start.input.format == "pcm16" else 1
        self._left = int(start.input.rate * width * EARLY_S)
        self._waiting: list[Callable[[Hearing], None]] = []

    def put(self, what: Callable[[Hearing], None], size: int = EARLY_LEAST) -> None:
        self._left -= max(size, EARLY_LEAST)
        if self._left >= 0:
            self._waiting.append(what)

    def hand_over(self, hearing: Hearing) -> None:
        for what in self._waiting:
            what(hearing)


def _listening(start: AudioStart, desk: SpokenDesk) -> Listening:
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
        language=desk.language_of(start),
    )
