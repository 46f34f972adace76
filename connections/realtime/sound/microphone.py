"""A session's sound: what its microphone hears goes to the recognizer, and replies are played as a clock says."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from math import inf

from connections.line.connection import Connection, Handler, refusal
from connections.native.handler import Asked
from connections.realtime.asking import Asking
from connections.realtime.problems import Invalid
from connections.realtime.sound.hearing import Hearing
from connections.realtime.sound.spoken_replies import SpokenReplies
from connections.realtime.sound.told import Cleared, OutputCleared
from connections.realtime.sound.wishes import SoundSettings
from connections.realtime.telling import Said, response_id
from connections.spoken.conduct import Act, Do, Understood
from connections.spoken.desk import SpokenDesk
from connections.spoken.line import SpokenLine
from connections.spoken.reply import SpokenReply
from connections.spoken.talk import MOST_REPLIES
from connections.spoken.talk import Said as Message
from connections.wire.audio import (
    AudioClear,
    AudioCommit,
    AudioInput,
    AudioOutput,
    AudioStart,
    AudioStarted,
    AudioStopped,
    Heard,
    Marks,
    Speech,
)
from connections.wire.errors import BadParams
from connections.wire.frames import Cancel, Error, Frame, Send
from sessions.errors import Refused
from speech.contract import Listening, Stopped
from speech.errors import RecognizerLost, TooFarBehind
from speech.sound.wav import Coding

Slow = Coroutine[None, None, None]

TICK_S = 0.05
"""How often it is noted what was played."""
EARLY_S = 10
"""So much sound may come before it can be listened to; beyond that it is dropped."""
AGAIN_S = 1.0
"""So long nothing is tried again that was refused."""
_ELSEWHERE = "Another connection speaks in this conversation now. To speak here again, send session.update."
_OWN = (AudioStarted, Speech, Heard, Marks)
"""What is told here in other words."""


class Microphone(SpokenLine):
    """The `Speaker` that one session is. It begins to listen with the first sound, or where a reply is to be spoken."""

    tells_late = True

    def __init__(
        self,
        desk: SpokenDesk,
        connection: Connection,
        *,
        asking: Asking,
        hearing: Hearing,
        replies: SpokenReplies,
    ) -> None:
        super().__init__(desk, connection)
        self._asking = asking
        self._heard = hearing
        self._spoken = replies
        self._inner: Handler[Asked] | None = None
        self._playing: list[SpokenReply] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listens: _Listens | None = None
        self._begun = asyncio.Event()
        self._understood: asyncio.Future[str] | None = None
        self._early = bytearray()
        self._again_at = 0.0

    @asynccontextmanager
    async def running(self, inner: Handler[Asked]) -> AsyncIterator[None]:
        """Listen and play while the context lasts. `inner`: what answers frames."""
        self._inner, self.say_as_frame = inner, inner.handle
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._inner = self.say_as_frame = None  # a cycle, which the collector would find in its time

    @property
    def is_ready(self) -> bool:
        """Whether a reply can be spoken at once."""
        return self.talk is not None

    async def ready(self) -> None:
        """Wait until replies can be spoken, and sound is listened to. Raises Invalid where they can't be."""
        self.listen()
        await self._begun.wait()
        if self.talk is None:
            why = "Nobody listens and nobody speaks at the moment. Try again."
            raise Invalid(why, code="speech_unavailable")

    def changed(self) -> None:
        """Note that the session's settings are others: what was refused may be tried again."""
        self._again_at = 0.0
        if self._listens is not None:
            self.listen()

    def listen(self) -> None:
        """Begin to listen as the settings say; where it listens otherwise, anew, once no reply is played."""
        start, listens = self._settings.start(self._asking.conversation_id), self._listens
        if listens is None:
            if asyncio.get_running_loop().time() >= self._again_at:
                self._begun.clear()
                self._listens = _Listens(start, self._task(self._keep(start)))
        elif listens.start != start and not listens.is_over and self.talk and not self.talk.is_talking:
            listens.is_over = True
            self._begun.clear()
            self.stop(AudioStopped(conversation_id=self._asking.conversation_id, reason="stop"))

    def append(self, audio: str) -> None:
        """Take what the microphone hears, in base64. Raises Invalid."""
        sound = decoded(audio, self._settings.input, "audio")
        self.listen()
        if self.is_heard:
            self.hear(sound)
        elif len(self._early) + len(sound) <= EARLY_S * _bytes_a_s(self._settings.input):
            self._early += sound

    async def commit(self) -> None:
        """Have what was said so far understood, and made an item. Raises Invalid."""
        if self._listens is None:
            raise _nothing_said()
        await self.ready()
        self._understood = asyncio.get_running_loop().create_future()
        self.handle(AudioCommit(conversation_id=self._asking.conversation_id))
        if not await self._understood:
            raise _nothing_said()

    def clear(self) -> None:
        """Forget what was said so far."""
        self._early.clear()
        if self.talk is not None:
            self.handle(AudioClear(conversation_id=self._asking.conversation_id))
        self.connection.push(Said(events=(Cleared(),)))

    async def understand(self, audio: str, field: str) -> str:
        """Return the words of sound that is no microphone's. Raises Invalid."""
        form = self._settings.input
        assert self._desk is not None  # noqa: S101 - it was made with one
        listening = Listening(coding=Coding(form.format), rate=form.rate, detects=False)
        sound = decoded(audio, form, field)
        try:
            async with self._desk.ear.listen(listening, owner=str(self.connection.owner)) as hearing:
                hearing.feed(sound)
                hearing.commit()
                async for heard in hearing.events():
                    if isinstance(heard, Stopped):
                        return heard.text
        except (RecognizerLost, TooFarBehind) as why:
            raise Invalid(str(why), code="speech_unavailable") from None
        return ""

    async def answer(self, send: Send, output: AudioOutput) -> None:
        """Have a message answered that was not spoken, and the reply spoken. Raises Invalid."""
        await self.ready()
        assert self.talk is not None  # noqa: S101 - what ready means
        await self.talk.answer(self, send, output)

    def truncate(self, turn_id: str, ms: int) -> Slow | None:
        """End a reply at what its client says that he heard of it, whether or not it was cut already."""
        self._spoken.stop(turn_id, ms)
        reply = next((one for one in self._playing if one.turn_id == turn_id), None)
        if reply is None:
            return None
        was_over = reply.is_over
        reply.stop_at(ms)
        if was_over or self._inner is None:
            return None
        return self._inner.handle(
            self.connection, Cancel(turn_id=turn_id, conversation_id=self._asking.conversation_id)
        )

    def clear_output(self) -> Slow | None:
        """End what is played, at what was heard by now."""
        slow = None
        for turn_id in [one.turn_id for one in self._playing if not one.is_over]:
            slow = self.truncate(turn_id, self._spoken.clock.heard_ms(turn_id)) or slow
            self.connection.push(Said(events=(OutputCleared(response_id=response_id(turn_id)),)))
        return slow

    def tell(self, frame: Frame) -> None:
        """Tell the client, in this door's words."""
        match frame:
            case AudioStopped(reason="elsewhere"):
                self._again_at = inf
                self.connection.push(Error(code="audio_taken_elsewhere", message=_ELSEWHERE))
            case Error():
                self._understand("")
                self.connection.push(frame)
            case _ if not isinstance(frame, (*_OWN, AudioStopped)):
                self.connection.push(frame)

    def heed(self, act: Act, *, talking: bool) -> None:
        """Tell what is done about what is said."""
        if act is Do.CUT:
            for reply in self._playing:
                if not reply.is_over:
                    self._spoken.interrupt(reply.turn_id)
        self._push(self._heard.heed(act, talking=talking))
        if isinstance(act, Understood) and act.final:
            self._understand(act.text)

    def message(self, send: Send, *, is_guess: bool) -> Send | None:
        """What was said is an item; it is sent where the session answers at once."""
        worded, told = self._heard.message(send, is_guess=is_guess)
        self._push(told)
        return worded

    async def say(self, said: Message) -> None:
        """Send a message as the connection's own. Raises Refused, BadParams."""
        if isinstance(said.playback, SpokenReply):
            self._playing = [*self._playing[1 - MOST_REPLIES :], said.playback]
            self._task(self._play(said.playback))
        try:
            await super().say(said)
        except BaseException:
            self._push(self._heard.refused(said.send.client_msg_id))
            raise

    def began(self) -> None:
        """What came too early is listened to first."""
        early, self._early = bytes(self._early), bytearray()
        if early:
            self.hear(early)
        self._begun.set()

    @property
    def _settings(self) -> SoundSettings:
        assert self._asking.settings.sound is not None  # noqa: S101 - no session has a microphone otherwise
        return self._asking.settings.sound

    def _task(self, work: Slow) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep(self, start: AudioStart) -> None:
        """Listen until it is over, or refused."""
        try:
            if self._inner is not None and (slow := self._inner.handle(self.connection, start)) is not None:
                await slow
        except (Refused, BadParams) as why:
            self._again_at = asyncio.get_running_loop().time() + AGAIN_S
            self.connection.push(refusal(why, None))
        finally:
            self._listens = None
            self._understand("")
            self._begun.set()

    async def _play(self, reply: SpokenReply) -> None:
        while not reply.is_over:
            await asyncio.sleep(TICK_S)
            reply.played(self._spoken.clock.heard_ms(reply.turn_id))
        self._spoken.clock.stop(reply.turn_id, reply.played_ms)

    def _understand(self, text: str) -> None:
        if self._understood is not None and not self._understood.done():
            self._understood.set_result(text)

    def _push(self, told: Iterable[Frame]) -> None:
        for frame in told:
            self.connection.push(frame)


class _Listens:
    """How it listens, and what does. `is_over`: it was told to stop."""

    __slots__ = ("is_over", "start", "task")

    def __init__(self, start: AudioStart, task: asyncio.Task[None]) -> None:
        self.start = start
        self.task = task
        self.is_over = False


def decoded(audio: str, form: AudioInput, field: str) -> bytes:
    """Return sound that came in base64. Raises Invalid."""
    try:
        sound = b64decode(audio, validate=True)
    except (NotBase64, ValueError):
        raise Invalid("must be base64.", field=field) from None
    if form.format == "pcm16" and len(sound) % 2:
        raise Invalid("must have two bytes for each sample.", field=field)
    return sound


def _bytes_a_s(form: AudioInput) -> int:
    return form.rate * (2 if form.format == "pcm16" else 1)


def _nothing_said() -> Invalid:
    why = "Nothing was said, or nothing was understood."
    return Invalid(why, code="input_audio_buffer_commit_empty")
