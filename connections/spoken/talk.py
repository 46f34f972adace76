"""A conversation that is spoken: what is heard becomes its messages, and their replies are played. The one owner of both."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import count
from typing import Protocol

import msgspec
import structlog

from connections.line.connection import Connection, refusal
from connections.spoken.conduct import Act, Conduct, Do, Say, Spoke, Understood
from connections.spoken.reply import Hold, SpokenReply
from connections.wire.audio import AudioOutput, AudioStart, AudioStopped, Heard, Speech
from connections.wire.errors import BadParams
from connections.wire.frames import Error, Frame, Params, Send
from engine.images.image import Detail
from sessions.errors import Overloaded, Refused
from sessions.records import Owner
from sessions.service import Sessions
from sessions.turn.cancelling import Cancel
from sessions.turn.sends import Playback
from speech.contract import Heard as HeardSound
from speech.contract import Stopped, Voice
from speech.errors import VoiceFailed

MOST_REPLIES = 4
"""That are spoken or wait for that, one behind the other."""

_log = structlog.get_logger("midstream.spoken")


class Said(msgspec.Struct, frozen=True):
    """A message, with what its frame has no field for. It counts, and is checked, as the one that it is.

    `playback`: who speaks the reply; `shown`: where each of its images stands in the content, and its detail; empty: before it.
    """

    send: Send
    playback: Playback | None = None
    shown: tuple[tuple[int, Detail], ...] = ()

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was taken back while it was still counted: it is not to be sent."""
        return isinstance(self.playback, SpokenReply) and self.playback.is_withdrawn

    @property
    def ref(self) -> str | None:
        """What its answer carries back."""
        return self.send.ref


class Speaker(Protocol):
    """Whoever speaks in the conversation at the moment: a connection that began to.

    `tells_late`: he says what he heard of a reply once that was cut, and not while it is played. He plays only replies to him.
    """

    connection: Connection
    start: AudioStart
    tells_late: bool

    def tell(self, frame: Frame) -> None:
        """Hear what happens, and the sound of replies."""
        ...

    def heed(self, act: Act, *, talking: bool) -> None:
        """Learn what is about to be done about what he says. `talking`: a reply is being made or played."""
        ...

    def message(self, send: Send, *, is_guess: bool) -> Send | None:
        """Return what he said as it is to be sent; None: not now. `is_guess`: he may go on."""
        ...

    def refused(self, send: Send) -> None:
        """Learn that what he said is not sent."""
        ...

    def stop(self, reason: AudioStopped) -> None:
        """Speak no longer."""
        ...

    async def say(self, said: Said) -> None:
        """Send a message as the connection's own; nothing is sent where that is gone. Raises Refused, BadParams."""
        ...


class Talk:
    """What is spoken in one conversation. It outlives its connection while a reply waits for that to come back."""

    def __init__(
        self,
        *,
        owner: Owner,
        conversation_id: str,
        sessions: Sessions,
        voice: Voice | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`tasks`: where its replies are spoken."""
        self.owner, self.conversation_id = owner, conversation_id
        self.speaker: Speaker | None = None
        self._sessions = sessions
        self._voice = voice
        self._tasks = tasks
        self._replies: list[SpokenReply] = []
        self._guess: SpokenReply | None = None
        self._streams = count(1)
        self._item, self._tries = "", count(1)
        self._conduct = _conduct(AudioStart())

    @property
    def is_talking(self) -> bool:
        """Whether a reply is being made or played."""
        return any(not reply.is_over for reply in self._replies)

    @property
    def is_idle(self) -> bool:
        """Whether nobody speaks and nothing is spoken."""
        return self.speaker is None and not self._replies

    def begin(self, speaker: Speaker) -> None:
        """Somebody begins to speak: replies that wait for a listener go on for him, or end at what was heard where he can't play them.

        What another one was saying comes to nothing.
        """
        self.forget()
        self.speaker = speaker
        self._conduct = _conduct(speaker.start)
        for reply in [one for one in self._replies if not one.is_over]:
            if speaker.tells_late:
                self._cancel(reply)
            else:
                reply.let_go(Hold.SPEECH)
                reply.attach(speaker.tell)

    def end(self, speaker: Speaker) -> None:
        """He left, or another one speaks already."""
        if self.speaker is speaker:
            self.forget()
            self.speaker = None
            for reply in self._replies:
                reply.detach(speaker.start.grace_s)

    def hear(self, heard: HeardSound) -> None:
        """Do what is to be done about it."""
        for act in self._conduct.heard(heard, talking=self.is_talking):
            self._heed(act)
        if isinstance(heard, Stopped):
            self._item = ""

    def forget(self) -> None:
        """What is being said comes to nothing."""
        for act in self._conduct.lost():
            self._heed(act)
        self._item = ""

    async def answer(self, speaker: Speaker, send: Send, output: AudioOutput) -> None:
        """Have a message answered that was not spoken, and the reply played to him. Raises Overloaded.

        Who is cancelled while he waits does not end the reply: that ends at what was heard, or goes on for another one.
        """
        if len(self._replies) >= MOST_REPLIES:
            raise _too_many()
        reply = self._new_reply(speaker, output, is_guess=False)
        await asyncio.shield(self._tasks.create_task(self._converse(speaker, Said(send, reply), reply)))

    def cut(self) -> None:
        """End what is played, at what was heard of it."""
        for reply in list(self._replies):
            self._cancel(reply)

    def played(self, turn_id: str, ms: int) -> None:
        """So much of a turn's sound was played; of one that was cut it is too late to say."""
        for reply in list(self._replies):
            if reply.turn_id == turn_id:
                reply.played(ms)

    def _heed(self, act: Act) -> None:
        if self.speaker is not None:
            self.speaker.heed(act, talking=self.is_talking)
        self._do(act)

    def _do(self, act: Act) -> None:
        match act:
            case Spoke(began, at_ms):
                self._tell_speech(began=began, at_ms=at_ms)
            case Understood(text, final):
                self._push(
                    Heard(conversation_id=self.conversation_id, text=text, final=final, item=self._named())
                )
            case Say(text, is_guess):
                self._say(text, is_guess=is_guess)
            case Do.HOLD:
                self._each(lambda reply: reply.hold(Hold.SPEECH))
            case Do.LET_GO:
                self._each(lambda reply: reply.let_go(Hold.SPEECH))
            case Do.CUT:
                self.cut()
            case Do.CONFIRM | Do.TAKE_BACK:
                self._settle(is_right=act is Do.CONFIRM)

    def _settle(self, *, is_right: bool) -> None:
        """Let the guess out, or take it back. There is none where it was refused."""
        guess, self._guess = self._guess, None
        if guess is None:
            return
        if is_right:
            guess.let_go(Hold.GUESS)
        else:
            self._take_back(guess)

    def _tell_speech(self, *, began: bool, at_ms: int) -> None:
        state = Speech(
            conversation_id=self.conversation_id, state="started" if began else "stopped", at_ms=at_ms
        )
        self._push(state)

    def _named(self) -> str:
        """The item of what is being said."""
        if not self._item:
            self._item, self._tries = f"item_{secrets.token_urlsafe(12)}", count(1)
        return self._item

    def _push(self, frame: Heard | Speech | Error) -> None:
        if self.speaker is not None:
            self.speaker.tell(frame)

    def _each(self, do: Callable[[SpokenReply], None]) -> None:
        for reply in list(self._replies):
            do(reply)

    def _say(self, text: str, *, is_guess: bool) -> None:
        speaker = self.speaker
        if speaker is None:
            return
        message = f"{self._named()}.{next(self._tries)}"
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
        if (worded := speaker.message(send, is_guess=is_guess)) is None:
            return
        if len(self._replies) >= MOST_REPLIES:
            self._push(refusal(_too_many(), worded.ref))
            speaker.refused(worded)
            return
        reply = self._new_reply(speaker, start.output, is_guess=is_guess)
        self._tasks.create_task(self._converse(speaker, Said(worded, reply), reply))

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
            tells_late=speaker.tells_late,
        )
        if is_guess:
            self._guess = reply
            reply.hold(Hold.GUESS)
        reply.attach(speaker.tell)
        self._replies.append(reply)
        return reply

    async def _converse(self, speaker: Speaker, said: Said, reply: SpokenReply | None) -> None:
        """Have a message answered, and the reply played."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if reply is not None:
                    tasks.create_task(self._play(reply))
                await self._send(speaker, said, reply)
        except Exception:  # noqa: BLE001 - a task's boundary: this reply is not spoken, the others go on
            _log.exception("reply not spoken", conversation_id=self.conversation_id)
        finally:
            if reply is not None:
                reply.stop()
                self._replies.remove(reply)

    async def _send(self, speaker: Speaker, said: Said, reply: SpokenReply | None) -> None:
        try:
            await speaker.say(said)
        except (Refused, BadParams) as why:
            speaker.tell(refusal(why, said.ref))
            if reply is not None:
                reply.stop()
        if reply is not None and not reply.turn_id:  # it was withdrawn, or its sender is gone
            reply.stop()

    async def _play(self, reply: SpokenReply) -> None:
        try:
            await reply.run()
        except VoiceFailed as failed:
            self._push(Error(code="speech_unavailable", message=str(failed), retryable=True))

    def _cancel(self, reply: SpokenReply) -> None:
        """End its turn at what was heard. One whose message is still counted has none: it is ended when it begins."""
        if not reply.turn_id:
            reply.stop()
            return
        cancel = Cancel(
            conversation_id=self.conversation_id, turn_id=reply.turn_id, seen_off=reply.heard, rollback=False
        )
        self._sessions.cancel(self.owner, cancel)

    def _take_back(self, guess: SpokenReply) -> None:
        """Have its message and its turn never been, wherever they are by now."""
        if not guess.turn_id:
            guess.withdraw()
            return
        cancel = Cancel(
            conversation_id=self.conversation_id, turn_id=guess.turn_id, seen_off=None, rollback=True
        )
        met = self._sessions.cancel(self.owner, cancel)
        if met is None or met.already:  # as of one whose voice failed
            self._tasks.create_task(self._take_back_ended(guess.turn_id))

    async def _take_back_ended(self, turn_id: str) -> None:
        try:
            await self._sessions.take_back(self.owner, self.conversation_id, turn_id)
        except Refused as why:
            self._push(refusal(why, None))
        except Exception:  # noqa: BLE001 - a task's boundary: this turn stays, the others go on
            _log.exception("guess not taken back", conversation_id=self.conversation_id)


def _conduct(start: AudioStart) -> Conduct:
    detection = start.turn_detection
    hears = detection.type == "vad"
    return Conduct(
        interrupts=hears and detection.interrupt,
        interrupt_ms=detection.interrupt_ms,
        guesses=hears and start.output is not None,
    )


def _too_many() -> Overloaded:
    return Overloaded("Too many replies wait to be spoken. Listen to one first.")
