"""A session's sound: the microphone's sound goes to the recognizer, and replies are played by a clock.

An utterance becomes an item, and a message of the session. Speech over a reply is reported once it ends the reply, so that a
cough empties no player.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import msgspec

from connections.api.realtime.encoder import RealtimeEventEncoder, RealtimeFrame
from connections.api.realtime.events import Event, InvalidEvent, complete_item, event
from connections.api.realtime.session import Item, ItemState, new_item_id
from connections.api.realtime.settings import AudioConfig
from connections.connection import Connection, Handler, PendingWork, error_frame
from connections.native.handler import ClientMessage
from connections.protocol.audio import (
    AudioClear,
    AudioCommit,
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
from connections.voice import (
    MAX_REPLIES,
    AudioBuffer,
    VoiceConnection,
    VoiceConversation,
    VoiceMessage,
    VoiceService,
)
from sessions.errors import Refused
from speech.interfaces import WIDTH

PLAYBACK_TICK_S = 0.05
"""How often the played sound is noted."""
COMMIT_TIMEOUT_S = 20.0
"""How long a `commit` waits for a recognizer, which may have to be started first."""
RETRY_S = 1.0
"""Pause before a refused start is tried again."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_TAKEN_ELSEWHERE = (
    "Another connection now has the audio of this conversation. To use audio here again, send session.update."
)


class RealtimeVoiceConnection(VoiceConnection):
    """The voice connection of one session. It begins to listen with the first sound, or when a reply is to be spoken."""

    reports_late = True

    def __init__(
        self,
        voice_service: VoiceService,
        connection: Connection,
        encoder: RealtimeEventEncoder,
        *,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        super().__init__(voice_service, connection)
        self._commit_timeout_s = commit_timeout_s
        self._session = encoder.session
        self._spoken_replies = encoder.spoken
        self._utterance = _Utterance()
        self._sent_ms = self._committed_ms = 0.0  # received sound, and that of the ended utterance
        self._playing: list[SpokenReply] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._wanted = self.start
        self._speaks, self._hears = asyncio.Event(), asyncio.Event()  # both are set at the end, too
        self._committed_text: asyncio.Future[str] | None = None
        self._retry_at = 0.0

    @asynccontextmanager
    async def running(self, inner: Handler[ClientMessage]) -> AsyncIterator[None]:
        """Listen and play while the context lasts. `inner`: answers frames."""
        self.inner = inner
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.inner = None  # breaks a cycle that only the collector would free

    async def ready(self) -> VoiceConversation:
        """Return the conversation once replies can be spoken. Raises InvalidEvent."""
        self.listen()
        if self._listening is not None:
            await self._speaks.wait()
        if self.conversation is None:
            raise _unavailable()
        return self.conversation

    def changed(self) -> None:
        """Note that the session's settings changed: what was refused may be tried again."""
        self._retry_at = 0.0
        if self._listening is not None:
            self.listen()

    def listen(self) -> None:
        """Listen with the session's settings. If they changed, the current utterance is dropped."""
        start = self._settings.start(self._session.conversation_id)
        if self._listening is None and asyncio.get_running_loop().time() < self._retry_at:
            return
        if self._listening is not None and start == self._wanted:
            return
        self.utterance_lost()
        self._wanted, self.buffer = start, AudioBuffer(start)
        if self._listening is None:
            self._speaks.clear()
            self._listening = self._task(self._listen_until_stopped(start))
        elif self.conversation is not None:
            self.change(start)

    def append(self, audio: str) -> None:
        """Take the microphone's sound, in base64. It is dropped if nothing listens. Raises InvalidEvent."""
        sound = decoded(audio, "audio")
        self.listen()
        if self._listening is not None:
            self._sent_ms += len(sound) * 1000 / (self._wanted.input.rate * WIDTH)
            self.feed(sound)

    async def commit(self) -> None:
        """Make the current utterance an item with its words. Raises InvalidEvent."""
        if self._listening is None:
            raise _no_speech()
        try:
            async with asyncio.timeout(self._commit_timeout_s):
                await self.ready()
                await self._hears.wait()
        except TimeoutError:
            raise _unavailable() from None
        if not self.is_listening:
            raise _unavailable()
        self._committed_text = asyncio.get_running_loop().create_future()
        self._committed_ms, self._sent_ms = self._sent_ms, 0.0
        self.handle(AudioCommit(conversation_id=self._session.conversation_id))
        if not await self._committed_text:
            raise _no_speech()

    def clear(self) -> None:
        """Drop the current utterance."""
        self._forget_sound()
        if self.buffer is not None:
            self.buffer = AudioBuffer(self._wanted)
        if self.conversation is not None:
            self.handle(AudioClear(conversation_id=self._session.conversation_id))
        self._send_events(event("input_audio_buffer.cleared"))

    async def answer(self, send: Send, output: AudioOutput) -> None:
        """Have a typed message answered, and the reply spoken. Raises InvalidEvent, Overloaded."""
        conversation = await self.ready()
        await conversation.answer(self, send, output)

    def truncate(self, turn_id: str, ms: int) -> PendingWork | None:
        """End a reply at what the client reports as heard, even if it was cut already."""
        self._spoken_replies.report(turn_id, ms)
        reply = next((one for one in self._playing if one.turn_id == turn_id), None)
        if reply is None:
            return None
        was_over = reply.is_over
        reply.stop_at(ms)
        if was_over or self.inner is None:
            return None
        return self.inner.handle(
            self.connection, Cancel(turn_id=turn_id, conversation_id=self._session.conversation_id)
        )

    def push(self, frame: Frame) -> None:
        """Send a frame to the client, in this endpoint's terms."""
        match frame:
            case AudioStopped(reason="elsewhere"):
                self._retry_at = inf
                self.connection.push(Error(code="audio_taken_elsewhere", message=_TAKEN_ELSEWHERE))
            case AudioStarted():
                self.start = self._wanted  # the settings may have changed meanwhile
                self._speaks.set()
            case AudioStopped() | Speech() | Transcript() | Marks():
                pass  # this endpoint has other words for them
            case _:
                self.connection.push(frame)

    def on_action(self, act: Action, *, talking: bool) -> None:
        """Send an action's events. `talking`: a reply is being made or played."""
        utterance = self._utterance
        match act:
            case SpeechEdge(True, at_ms):
                self._utterance = _Utterance(started_ms=at_ms)
                if not (talking and self._settings.interrupts):
                    self._send_start()
            case SpeechEdge(False, at_ms):
                if utterance.is_committed:  # without detection, this one is all sound since
                    utterance = self._utterance = _Utterance()
                sent_ms, self._committed_ms = self._committed_ms, 0.0
                started_ms = utterance.started_ms
                utterance.ms = round(sent_ms) if started_ms is None else max(0, at_ms - started_ms)
                utterance.stopped_ms = at_ms
                if utterance.is_announced:
                    self._send_stop()
            case TranscriptUpdate(text, False) if utterance.is_announced and self._settings.transcription:
                about = {"item_id": utterance.item_id, "content_index": 0}
                delta = text.removeprefix(utterance.sent)  # each text extends the one before
                self._send_events(event(f"{_TRANSCRIPTION}.delta", **about, delta=delta))
                utterance.sent = text
            case TranscriptUpdate(text, True):
                self._resolve_commit(text)
            case ReplyAction.CUT:
                self._interrupt()

    def message(self, send: Send) -> Send | None:
        """Make the utterance an item; return the message if the session answers at once, else it waits."""
        self._commit(send.content, ItemState.WAITING)
        return self._session.speech_message(send, self._utterance.item_id) if self._settings.creates else None

    def refused(self, send: Send) -> None:
        """Let the utterance wait as an item."""
        self._session.requeue(send.client_msg_id)

    async def send_message(self, request: VoiceMessage) -> None:
        """Send a message for the connection. Raises Refused."""
        if (reply := request.player) is not None:
            self._playing = [*self._playing[1 - MAX_REPLIES :], reply]
            self._task(self._play(reply))
        shown = self._session.image_positions(request.send.client_msg_id)
        try:
            await super().send_message(msgspec.structs.replace(request, shown=shown))
        except BaseException:
            self.refused(request.send)
            raise

    def listening_started(self) -> None:
        """Note that the recognizer listens."""
        self._hears.set()

    def utterance_lost(self) -> None:
        """Drop the current utterance."""
        self._hears.clear()
        self._forget_sound()
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
            if self.inner is not None and (slow := self.inner.handle(self.connection, start)) is not None:
                await slow
        except Refused as why:
            self._retry_at = asyncio.get_running_loop().time() + RETRY_S
            self.connection.push(error_frame(why, None))
        finally:
            self.utterance_lost()
            self._listening = self.buffer = None
            self._speaks.set()
            self._hears.set()

    async def _play(self, reply: SpokenReply) -> None:
        while not reply.is_over:
            await asyncio.sleep(PLAYBACK_TICK_S)
            reply.played(self._spoken_replies.heard_ms(reply.turn_id))
        self._spoken_replies.stop(reply.turn_id, reply.played_ms)

    def _resolve_commit(self, text: str) -> None:
        if self._committed_text is not None and not self._committed_text.done():
            self._committed_text.set_result(text)

    def _forget_sound(self) -> None:
        """Forget the sound so far: it is not part of the next utterance."""
        self._sent_ms = self._committed_ms = 0.0

    def _send_events(self, *events: Event) -> None:
        self.connection.push(RealtimeFrame(events=events))

    def _interrupt(self) -> None:
        """Note that speech ended the replies, and report the speech."""
        for reply in self._playing:
            if not reply.is_over:
                self._spoken_replies.interrupt(reply.turn_id)
        if not self._utterance.is_announced and self._utterance.started_ms is not None:
            self._send_start()
            if self._utterance.stopped_ms is not None:
                self._send_stop()

    def _send_start(self) -> None:
        utterance = self._utterance
        utterance.is_announced = True
        about = {"audio_start_ms": utterance.started_ms or 0, "item_id": utterance.item_id}
        self._send_events(event("input_audio_buffer.speech_started", **about))

    def _send_stop(self) -> None:
        about = {"audio_end_ms": self._utterance.stopped_ms, "item_id": self._utterance.item_id}
        self._send_events(event("input_audio_buffer.speech_stopped", **about))

    def _commit(self, text: str, state: ItemState) -> None:
        """Make the utterance an item; if nothing will answer the item, it is stored at once."""
        transcribes, has_transcript = self._settings.transcribes, self._settings.transcription is not None
        utterance = self._utterance
        if utterance.is_committed:  # one utterance made a second message, as after `clear`
            self._utterance = utterance = _Utterance()
        utterance.is_committed = True
        gone = self._session.evict_for(text) if state is ItemState.WAITING and not transcribes else []
        item = Item(item_id=utterance.item_id, role="user", text=text, state=state, sound_ms=0)
        if transcribes:
            previous = self._session.items.store(msgspec.structs.replace(item, state=ItemState.STORED))
        else:
            previous = self._session.items.create(item, after=None)
        shown = item.shown()
        if has_transcript:
            shown["content"] = [{"type": "input_audio", "transcript": None}]  # it follows in an event
        item_id = utterance.item_id
        committed = event("input_audio_buffer.committed", previous_item_id=previous, item_id=item_id)
        self._send_events(*gone, committed, *complete_item(previous, shown))
        if has_transcript:
            about = {"item_id": item_id, "content_index": 0, "transcript": text}
            usage = {"type": "duration", "seconds": utterance.ms / 1000}
            self._send_events(event(f"{_TRANSCRIPTION}.completed", **about, usage=usage))


def decoded(audio: str, field: str) -> bytes:
    """Return sound from base64. Raises InvalidEvent."""
    try:
        sound = b64decode(audio, validate=True)
    except ValueError:
        raise InvalidEvent("must be base64.", field=field) from None
    if len(sound) % WIDTH:
        raise InvalidEvent("must have two bytes per sample.", field=field)
    return sound


def _unavailable() -> InvalidEvent:
    return InvalidEvent("No speech model is available at the moment; try again.", code="speech_unavailable")


def _no_speech() -> InvalidEvent:
    return InvalidEvent("No speech was recognized.", code="input_audio_buffer_commit_empty")


class _Utterance(msgspec.Struct):
    """The words between two silences. `sent`: those that its client knows; `ms`: their length."""

    started_ms: int | None = None
    stopped_ms: int | None = None
    item_id: str = msgspec.field(default_factory=new_item_id)
    is_announced: bool = False
    is_committed: bool = False
    sent: str = ""
    ms: int = 0
