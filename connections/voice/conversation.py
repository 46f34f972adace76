"""A spoken conversation: speech becomes its messages, and their replies are played. It owns both."""

from __future__ import annotations

import asyncio
import secrets
from itertools import count
from typing import Protocol

import msgspec
import structlog

from connections.connection import Connection, error_frame
from connections.protocol.audio import AudioOutput, AudioStart, AudioStopped, Heard, Speech
from connections.protocol.errors import BadParams
from connections.protocol.frames import Error, Frame, Params, Send
from connections.voice.reply import SpokenReply
from connections.voice.turn_taking import (
    Action,
    ReplyAction,
    SpeechEdge,
    SubmitMessage,
    TranscriptUpdate,
    TurnTakingPolicy,
)
from engine.vision.image import Detail
from sessions.errors import Overloaded, Refused
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.message_request import Playback
from sessions.turn.turn import Cancel
from speech.errors import VoiceFailed
from speech.interfaces import Heard as HeardSound
from speech.interfaces import Stopped, Voice

MAX_REPLIES = 4
"""Replies that are spoken or wait to be, one after another."""

_log = structlog.get_logger("midstream.spoken")


class VoiceMessage(msgspec.Struct, frozen=True):
    """A message, with what its frame has no field for. It counts, and is checked, as its kind of message.

    `playback`: speaks the reply; `shown`: the place of each image in the content, and its detail; empty: before it.
    """

    send: Send
    playback: Playback | None = None
    shown: tuple[tuple[int, Detail], ...] = ()

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was taken back while it was being counted: it must not be sent."""
        return isinstance(self.playback, SpokenReply) and self.playback.is_withdrawn

    @property
    def ref(self) -> str | None:
        """The reference that its answer repeats."""
        return self.send.ref


class Speaker(Protocol):
    """The current speaker in the conversation: a connection.

    `reports_late`: it reports what was heard of a reply after a cut, not while it is played. Then it plays only
    replies to itself.
    """

    connection: Connection
    start: AudioStart
    reports_late: bool

    def push(self, frame: Frame) -> None:
        """Take an event, or the sound of replies."""
        ...

    def on_action(self, act: Action, *, talking: bool) -> None:
        """Note an act that follows its speech. `talking`: a reply is being made or played."""
        ...

    def message(self, send: Send, *, is_guess: bool) -> Send | None:
        """Return the message to send; None: not now. `is_guess`: the user may continue."""
        ...

    def refused(self, send: Send) -> None:
        """Note that a message was not sent."""
        ...

    def stop(self, reason: AudioStopped) -> None:
        """Stop speaking."""
        ...

    async def send_message(self, request: VoiceMessage) -> None:
        """Send a message for the connection; does nothing if that has gone. Raises Refused, BadParams."""
        ...


class VoiceConversation:
    """The speech of one conversation. It outlives its connection while a reply waits for that to come back."""

    def __init__(
        self,
        *,
        owner: Owner,
        conversation_id: str,
        sessions: Sessions,
        voice: Voice | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tasks`: run its replies."""
        self.owner, self.conversation_id = owner, conversation_id
        self.speaker: Speaker | None = None
        self._sessions = sessions
        self._voice = voice
        self._tasks = tasks
        self._replies: list[SpokenReply] = []
        self._guess: SpokenReply | None = None
        self._streams = count(1)
        self._current_item_id, self._attempts = "", count(1)
        self._turn_taking = _turn_taking(AudioStart())

    @property
    def is_talking(self) -> bool:
        """Whether a reply is being made or played."""
        return any(not reply.is_over for reply in self._replies)

    @property
    def is_idle(self) -> bool:
        """Whether nobody speaks and no reply is spoken."""
        return self.speaker is None and not self._replies

    def begin(self, speaker: Speaker) -> None:
        """Begin with a speaker. Waiting replies continue for it, or end at what was heard if it can't play them.

        The utterance of another speaker is dropped.
        """
        self.forget()
        self.speaker = speaker
        self._turn_taking = _turn_taking(speaker.start)
        for reply in [one for one in self._replies if not one.is_over]:
            if speaker.reports_late:
                self._cancel(reply)
            else:
                reply.attach(speaker.push)

    def end(self, speaker: Speaker) -> None:
        """End with a speaker that left, or that another one replaced."""
        if self.speaker is speaker:
            self.forget()
            self.speaker = None
            for reply in self._replies:
                reply.detach(speaker.start.grace_s)

    def feed(self, heard: HeardSound) -> None:
        """Do what an event requires."""
        for act in self._turn_taking.heard(heard, talking=self.is_talking):
            self._on_action(act)
        if isinstance(heard, Stopped):
            self._current_item_id = ""

    def forget(self) -> None:
        """Drop the current utterance."""
        for act in self._turn_taking.lost():
            self._on_action(act)
        self._current_item_id = ""

    async def answer(self, speaker: Speaker, send: Send, output: AudioOutput) -> None:
        """Have a typed message answered, and the reply played to a speaker. Raises Overloaded.

        Cancelling the wait does not end the reply: that ends at what was heard, or continues for another speaker.
        """
        if len(self._replies) >= MAX_REPLIES:
            raise _too_many_replies()
        reply = self._new_reply(speaker, output, is_guess=False)
        await asyncio.shield(
            self._tasks.create_task(self._run_turn(speaker, VoiceMessage(send, reply), reply))
        )

    def cut(self) -> None:
        """End the current reply, at what was heard of it."""
        for reply in list(self._replies):
            self._cancel(reply)

    def played(self, turn_id: str, ms: int) -> None:
        """Note how much of a turn's sound was played; it is too late for one that was cut."""
        for reply in list(self._replies):
            if reply.turn_id == turn_id:
                reply.played(ms)

    def _on_action(self, act: Action) -> None:
        if self.speaker is not None:
            self.speaker.on_action(act, talking=self.is_talking)
        self._apply(act)

    def _apply(self, act: Action) -> None:
        match act:
            case SpeechEdge(began, at_ms):
                self._push_speech_state(began=began, at_ms=at_ms)
            case TranscriptUpdate(text, final):
                self._push(
                    Heard(conversation_id=self.conversation_id, text=text, final=final, item=self._item_id())
                )
            case SubmitMessage(text, is_guess):
                self._submit(text, is_guess=is_guess)
            case ReplyAction.CUT:
                self.cut()
            case ReplyAction.CONFIRM | ReplyAction.ROLL_BACK:
                self._settle(is_confirmed=act is ReplyAction.CONFIRM)

    def _settle(self, *, is_confirmed: bool) -> None:
        """Play the guess, or take it back; there is none if it was refused."""
        guess, self._guess = self._guess, None
        if guess is None:
            return
        if is_confirmed:
            guess.confirm()
        else:
            self._roll_back(guess)

    def _push_speech_state(self, *, began: bool, at_ms: int) -> None:
        state = Speech(
            conversation_id=self.conversation_id, state="started" if began else "stopped", at_ms=at_ms
        )
        self._push(state)

    def _item_id(self) -> str:
        """The item of the current utterance."""
        if not self._current_item_id:
            self._current_item_id, self._attempts = f"item_{secrets.token_urlsafe(12)}", count(1)
        return self._current_item_id

    def _push(self, frame: Heard | Speech | Error) -> None:
        if self.speaker is not None:
            self.speaker.push(frame)

    def _submit(self, text: str, *, is_guess: bool) -> None:
        speaker = self.speaker
        if speaker is None:
            return
        message = f"{self._item_id()}.{next(self._attempts)}"
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
        if (prepared := speaker.message(send, is_guess=is_guess)) is None:
            return
        if len(self._replies) >= MAX_REPLIES:
            self._push(error_frame(_too_many_replies(), prepared.ref))
            speaker.refused(prepared)
            return
        reply = self._new_reply(speaker, start.output, is_guess=is_guess)
        self._tasks.create_task(self._run_turn(speaker, VoiceMessage(prepared, reply), reply))

    def _new_reply(
        self, speaker: Speaker, output: AudioOutput | None, *, is_guess: bool
    ) -> SpokenReply | None:
        if output is None or self._voice is None:
            return None
        stream = next(self._streams) % (1 << 16)
        reply = SpokenReply(
            self._voice,
            output,
            conversation_id=self.conversation_id,
            stream=stream,
            cut=self._cancel,
            reports_late=speaker.reports_late,
            is_guess=is_guess,
        )
        if is_guess:
            self._guess = reply
        reply.attach(speaker.push)
        self._replies.append(reply)
        return reply

    async def _run_turn(self, speaker: Speaker, request: VoiceMessage, reply: SpokenReply | None) -> None:
        """Have a message answered, and the reply played."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if reply is not None:
                    tasks.create_task(self._play(reply))
                await self._send(speaker, request, reply)
        except Exception:  # noqa: BLE001 - a task's boundary: this reply is not spoken, the others go on
            _log.exception("reply not spoken", conversation_id=self.conversation_id)
        finally:
            if reply is not None:
                reply.stop()
                self._replies.remove(reply)

    async def _send(self, speaker: Speaker, request: VoiceMessage, reply: SpokenReply | None) -> None:
        try:
            await speaker.send_message(request)
        except (Refused, BadParams) as why:
            speaker.push(error_frame(why, request.ref))
            if reply is not None:
                reply.stop()
        if reply is not None and not reply.turn_id:  # it was withdrawn, or its sender has gone
            reply.stop()

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
        """Undo its message and its turn, whatever their state."""
        if not guess.turn_id:
            guess.withdraw()
            return
        cancel = Cancel(
            conversation_id=self.conversation_id, turn_id=guess.turn_id, seen_off=None, rollback=True
        )
        met = self._sessions.turns.cancel(self.owner, cancel)
        if met is None or met.already:  # as if its voice failed
            self._tasks.create_task(self._roll_back_ended(guess.turn_id))

    async def _roll_back_ended(self, turn_id: str) -> None:
        try:
            await self._sessions.take_back(self.owner, self.conversation_id, turn_id)
        except Refused as why:
            self._push(error_frame(why, None))
        except Exception:  # noqa: BLE001 - a task's boundary: this turn stays, the others go on
            _log.exception("speculative turn not rolled back", conversation_id=self.conversation_id)


def _turn_taking(start: AudioStart) -> TurnTakingPolicy:
    detection = start.turn_detection
    detects_speech = detection.type == "vad"
    return TurnTakingPolicy(
        interrupts=detects_speech and detection.interrupt,
        interrupt_ms=detection.interrupt_ms,
        guesses=detects_speech and start.output is not None,
    )


def _too_many_replies() -> Overloaded:
    return Overloaded("Too many replies wait to be spoken. Listen to one first.")
