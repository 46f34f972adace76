"""A session's sound: the microphone's sound goes to the recognizer, and replies are played by a clock."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf

import msgspec

from connections.line.connection import Connection, Handler, refusal
from connections.line.requests import Chained, Slow
from connections.native.handler import Asked
from connections.realtime.asking import Asking
from connections.realtime.problems import Invalid
from connections.realtime.sound.hearing import Hearing
from connections.realtime.sound.spoken_replies import Guess, SpokenReplies
from connections.realtime.sound.told import Cleared, OutputCleared
from connections.realtime.sound.wishes import SoundSettings
from connections.realtime.telling import Said, response_id
from connections.spoken.conduct import Act, Do, Understood
from connections.spoken.desk import SpokenDesk
from connections.spoken.line import SpokenLine
from connections.spoken.reply import SpokenReply
from connections.spoken.talk import MOST_REPLIES, Talk
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

TICK_S = 0.05
"""How often the played sound is noted."""
EARLY_S = 10
"""Seconds of early sound that wait until listening begins; more is dropped."""
HEARD_WITHIN_S = 20.0
"""How long a `commit` waits for a recognizer, which may have to be started first."""
AGAIN_S = 1.0
"""Pause before a refused start is tried again."""
_ELSEWHERE = "Another connection speaks in this conversation now. To speak here again, send session.update."
_OWN = (AudioStarted, Speech, Heard, Marks)
"""Frames that this door sends in other words."""


class Microphone(SpokenLine):
    """The `Speaker` of one session. It begins to listen with the first sound, or when a reply is to be spoken."""

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
        self._understood: asyncio.Future[str] | None = None
        self._early = _Early()
        self._again_at = 0.0

    @asynccontextmanager
    async def running(self, inner: Handler[Asked]) -> AsyncIterator[None]:
        """Listen and play while the context lasts. `inner`: answers frames."""
        self._inner, self.say_as_frame = inner, inner.handle
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._inner = self.say_as_frame = None  # breaks a cycle that only the collector would free

    async def ready(self) -> tuple[Talk, _Listens]:
        """Return the talk and the listening once replies can be spoken. Raises Invalid if they can't be.

        If other settings end a listening, the next one is returned.
        """
        while True:
            self.listen()
            if (listens := self._listens) is None:
                raise _unavailable()
            if listens.is_over:
                await asyncio.wait((listens.task,))
                continue
            await listens.speaks.wait()
            if self.talk is not None and not listens.is_over:
                return self.talk, listens
            if not listens.is_over:
                raise _unavailable()

    def changed(self) -> None:
        """Note that the session's settings changed: what was refused may be tried again."""
        self._again_at = 0.0
        if self._listens is not None:
            self.listen()

    def listen(self) -> None:
        """Begin to listen with the settings; if it listens with others, begin anew once no reply is played."""
        start, listens = self._settings.start(self._asking.conversation_id), self._listens
        if listens is None:
            if asyncio.get_running_loop().time() >= self._again_at:
                self._listens = _Listens(start, self._task(self._keep(start)))
        elif listens.start != start and not listens.is_over and self.talk and not self.talk.is_talking:
            listens.is_over = True
            self.stop(AudioStopped(conversation_id=self._asking.conversation_id, reason="stop"))

    def append(self, audio: str) -> None:
        """Take the microphone's sound, in base64. It is dropped if nobody will listen. Raises Invalid."""
        form = self._settings.input
        sound = decoded(audio, form, "audio")
        self.listen()
        if (listens := self._listens) is None:
            return
        self._heard.take(len(sound) * 1000 / _bytes_a_s(form))
        if self.is_heard and listens.start.input == form and not listens.is_over:
            self.hear(sound)
        else:
            self._early.add(sound, form)

    async def commit(self) -> None:
        """Make the current utterance an item with its words. Raises Invalid."""
        if self._listens is None:
            raise _nothing_said()
        try:
            async with asyncio.timeout(HEARD_WITHIN_S):
                _, listens = await self.ready()
                await listens.hears.wait()
        except TimeoutError:
            raise _unavailable() from None
        if not self.is_heard:
            raise _unavailable()
        self._understood = asyncio.get_running_loop().create_future()
        self._heard.ends()
        self.handle(AudioCommit(conversation_id=self._asking.conversation_id))
        if not await self._understood:
            raise _nothing_said()

    def clear(self) -> None:
        """Drop the current utterance."""
        self._early.clear()
        self._heard.forget()
        if self.talk is not None:
            self.handle(AudioClear(conversation_id=self._asking.conversation_id))
        self.connection.push(Said(events=(Cleared(),)))

    async def understand(self, audio: str, field: str) -> str:
        """Return the words of sound outside the microphone; it takes a place. Raises Invalid, Overloaded."""
        form, desk = self._settings.input, self._desk
        assert desk is not None  # noqa: S101 - it was created with one
        language = desk.language_of(self._settings.start(self._asking.conversation_id))
        listening = Listening(coding=Coding(form.format), rate=form.rate, detects=False, language=language)
        sound = decoded(audio, form, field)
        with desk.place(self.connection.caller.subject):
            try:
                async with desk.ear.listen(listening, owner=str(self.connection.owner)) as hearing:
                    hearing.feed(sound)
                    hearing.commit()
                    async for heard in hearing.events():
                        if isinstance(heard, Stopped):
                            return heard.text
            except (RecognizerLost, TooFarBehind) as why:
                raise Invalid(str(why), code="speech_unavailable") from None
        return ""

    async def answer(self, send: Send, output: AudioOutput) -> None:
        """Have a typed message answered, and the reply spoken. Raises Invalid, Overloaded."""
        talk, _ = await self.ready()
        await talk.answer(self, send, output)

    def truncate(self, turn_id: str, ms: int) -> Slow | None:
        """End a reply at what its client reports as heard, whether or not it was cut already."""
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
        """End the current reply, at what was heard by now. A guess is not played."""
        slows: list[Slow] = []
        for turn_id in [
            one.turn_id for one in self._playing if one.turn_id and not (one.is_over or one.is_guess)
        ]:
            if (slow := self.truncate(turn_id, self._spoken.clock.heard_ms(turn_id))) is not None:
                slows.append(slow)
            self.connection.push(Said(events=(OutputCleared(response_id=response_id(turn_id)),)))
        return Chained(_one_by_one(slows), *slows) if slows else None

    def tell(self, frame: Frame) -> None:
        """Send a frame to the client, in this door's terms."""
        match frame:
            case AudioStopped(reason="elsewhere"):
                self._again_at = inf
                self.connection.push(Error(code="audio_taken_elsewhere", message=_ELSEWHERE))
            case AudioStarted():
                if self._listens is not None:
                    self._listens.speaks.set()
            case _ if not isinstance(frame, (*_OWN, AudioStopped)):
                self.connection.push(frame)

    def heed(self, act: Act, *, talking: bool) -> None:
        """Send the frames about an act."""
        if act is Do.CUT:
            for reply in self._playing:
                if not reply.is_over:
                    self._spoken.interrupt(reply.turn_id)
        self._push(self._heard.heed(act, talking=talking))
        if isinstance(act, Understood) and act.final:
            self._understand(act.text)

    def message(self, send: Send, *, is_guess: bool) -> Send | None:
        """Make the utterance an item; return the message if the session answers at once."""
        worded, told = self._heard.message(send, is_guess=is_guess)
        self._push(told)
        return worded

    def refused(self, send: Send) -> None:
        """Let the utterance wait, as any item."""
        self._push(self._heard.refused(send.client_msg_id))

    async def say(self, said: Message) -> None:
        """Send a message for the connection. Raises Refused, BadParams."""
        if isinstance(said.playback, SpokenReply):
            self._playing = [*self._playing[1 - MOST_REPLIES :], said.playback]
            self._task(self._play(said.playback))
        shown = self._asking.shown_in(said.send.client_msg_id)
        try:
            await super().say(msgspec.structs.replace(said, shown=shown))
        except BaseException:
            self.refused(said.send)
            raise
        if said.is_withdrawn and isinstance(said.playback, SpokenReply) and not said.playback.turn_id:
            self._push([Guess(known_by=said.send.client_msg_id, came="void")])  # no turn of it will end

    def began(self) -> None:
        """Listen to early sound first."""
        if self._listens is None or self._listens.is_over:
            return
        if early := self._early.take(self.start.input):
            self.hear(early)
        self._listens.hears.set()

    def ended(self) -> None:
        """Drop the current utterance, and sound that nobody listened to."""
        if self._listens is not None:
            self._listens.hears.clear()
        self._early.clear()
        self._heard.forget()
        self._understand("")

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
        """Listen until it ends, or is refused."""
        try:
            if self._inner is not None and (slow := self._inner.handle(self.connection, start)) is not None:
                await slow
        except (Refused, BadParams) as why:
            self._again_at = asyncio.get_running_loop().time() + AGAIN_S
            self.connection.push(refusal(why, None))
        finally:
            listens, self._listens = self._listens, None
            self._understand("")
            self._heard.forget()
            if listens is not None:
                if not listens.is_over:  # nothing listens after it
                    self._early.clear()
                listens.speaks.set()
                listens.hears.set()

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
    """A listening with its settings. `is_over`: it was told to stop.

    `speaks`: replies can be spoken; `hears`: the recognizer listens. Both are set at the end, too.
    """

    __slots__ = ("hears", "is_over", "speaks", "start", "task")

    def __init__(self, start: AudioStart, task: asyncio.Task[None]) -> None:
        self.start = start
        self.task = task
        self.is_over = False
        self.speaks = asyncio.Event()
        self.hears = asyncio.Event()


class _Early:
    """Early sound in one coding; sound in another coding replaces it."""

    __slots__ = ("_form", "_sound")

    def __init__(self) -> None:
        self._form = AudioInput()
        self._sound = bytearray()

    def add(self, sound: bytes, form: AudioInput) -> None:
        """Keep it, up to `EARLY_S`."""
        if form != self._form:
            self._form = form
            self._sound.clear()
        if len(self._sound) + len(sound) <= EARLY_S * _bytes_a_s(form):
            self._sound += sound

    def take(self, form: AudioInput) -> bytes:
        """Return the sound in this coding, once."""
        sound = bytes(self._sound) if form == self._form else b""
        self._sound.clear()
        return sound

    def clear(self) -> None:
        """Drop it."""
        self._sound.clear()


async def _one_by_one(slows: Iterable[Slow]) -> None:
    for slow in slows:
        await slow


def decoded(audio: str, form: AudioInput, field: str) -> bytes:
    """Return sound from base64. Raises Invalid."""
    try:
        sound = b64decode(audio, validate=True)
    except (NotBase64, ValueError):
        raise Invalid("must be base64.", field=field) from None
    if form.format == "pcm16" and len(sound) % 2:
        raise Invalid("must have two bytes for each sample.", field=field)
    return sound


def _bytes_a_s(form: AudioInput) -> int:
    return form.rate * (2 if form.format == "pcm16" else 1)


def _unavailable() -> Invalid:
    why = "Nobody listens and nobody speaks at the moment. Try again."
    return Invalid(why, code="speech_unavailable")


def _nothing_said() -> Invalid:
    why = "Nothing was said, or nothing was understood."
    return Invalid(why, code="input_audio_buffer_commit_empty")
