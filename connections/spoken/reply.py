"""The reply of one turn as sound: spoken clause by clause while it is written, sent as it is played, over when it was heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from time import monotonic

from connections.spoken.timeline import Timeline
from connections.wire.audio import LAST, AudioOutput, AudioReply, Marks, Sound
from connections.wire.frames import Frame
from sessions.events import Delta
from sessions.turn.sends import Precision
from speech.contract import Mark, Voice
from speech.errors import VoiceFailed
from speech.sound.wav import Coding
from speech.voice.clauses import Clause, Clauses

PART_MS = 40
"""Sound of one binary frame."""
MADE_AHEAD_MS = 2000
"""No clause is spoken while so much sound waits to be sent: a reply that is cut soon costs little."""
STALLED_S = 10.0
"""Who says nothing of what he plays for so long, though sound was sent, does not listen."""
TOLD_WITHIN_S = 0.5
"""So long a cut waits for a listener who says only then how much he heard."""

Push = Callable[[Frame], None]


class Hold(Enum):
    """Why sound is not sent for now."""

    GUESS = auto()
    """The user may not have ended."""
    SPEECH = auto()
    """The user speaks over it."""


class SpokenReply:
    """The `Playback` of a turn. `run` speaks; the others never wait, but for `over`."""

    def __init__(
        self,
        voice: Voice,
        output: AudioOutput,
        *,
        conversation_id: str,
        stream: int,
        cut: Callable[[SpokenReply], None],
        tells_late: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`stream`: the number of its binary frames. `cut`: ends its turn at what was heard, once that has a name.

        `tells_late`: its listener may say what he heard once it was cut.
        """
        self._voice, self._output = voice, output
        self._conversation_id, self._stream = conversation_id, stream
        self._timeline = Timeline(rate=output.rate, width=2 if output.format == "pcm16" else 1)
        self._clauses = Clauses()
        self._waiting: asyncio.Queue[Clause | None] = asyncio.Queue()
        self._state = _State(clock, tells_late=tells_late)
        self._cut = cut
        self._holds: set[Hold] = set()
        self._push: Push | None = None
        self.turn_id = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is played any more."""
        return self._state.over.is_set()

    @property
    def played_ms(self) -> int:
        """How much of its sound was played."""
        return self._timeline.played_ms

    @property
    def heard(self) -> int:
        """How much of its text was heard: all that was sent, perhaps, while its listener may say so.

        Where the voice failed all of it was left to be read.
        """
        if self._state.is_mute:
            return self._state.said
        return self._timeline.heard if self._state.told.is_set() else self._timeline.sent_off

    @property
    def precision(self) -> Precision:
        """To what that is exact."""
        return self._timeline.precision

    @property
    def is_guess(self) -> bool:
        """Whether its user may not have ended: nobody knows of it so far."""
        return Hold.GUESS in self._holds

    @property
    def is_withdrawn(self) -> bool:
        """Whether its message was taken back before its turn began: it is not to be sent."""
        return self._state.is_withdrawn

    @property
    def patience_s(self) -> float | None:
        """How long its listener may say nothing of what he plays until he counts as gone; None: he has nothing to say."""
        waits = self._push is not None and int(self._timeline.sent_ms) > self._timeline.played_ms
        return self._state.patience.left_s if waits and not self._holds else None

    def begin(self, turn_id: str) -> None:
        """Its turn has this name. One that was cut before ends as soon as it can be ended."""
        self.turn_id = turn_id
        if self.is_over:
            asyncio.get_running_loop().call_soon(self._cut, self)

    def say(self, text: Delta) -> None:
        """Take more text. What waits is no more than a reply may have."""
        self._state.said = text.off + len(text.text)
        for clause in self._clauses.feed(text.text):
            self._waiting.put_nowait(clause)

    async def over(self) -> None:
        """The text is complete: return once it was played, or stopped."""
        for clause in self._clauses.finish():
            self._waiting.put_nowait(clause)
        self._waiting.put_nowait(None)
        await self._state.over.wait()

    async def settled(self) -> None:
        """Wait for what its listener says that he heard, if he may. Without his word it is what was played by then."""
        if self._push is not None and self._timeline.sent_ms:
            with suppress(TimeoutError):
                async with asyncio.timeout(TOLD_WITHIN_S):
                    await self._state.told.wait()
        self._state.told.set()

    def stop_at(self, ms: int) -> None:
        """Its listener heard so much of its sound, and hears no more of it."""
        self._timeline.stop_at(ms)
        self._state.told.set()

    def stop(self) -> None:
        """Play nothing any more."""
        self._state.patience.stop_waiting()
        self._state.over.set()
        self._state.moved.set()

    def withdraw(self) -> None:
        """Its message is not to be sent, where it was not so far."""
        self._state.is_withdrawn = True
        self.stop()

    def attach(self, push: Push) -> None:
        """Send to somebody who has nothing of it: from what was played on."""
        self._state.patience.stop_waiting()
        self._state.patience.renew()
        self._push = push
        self._state.is_told = self._state.is_ended = False
        self._timeline.rewind()
        self._send()

    def detach(self, grace_s: float) -> None:
        """Nobody listens for now. Who has not come back by then has its turn ended, whoever else is attached."""
        self._push = None
        self._state.told.set()
        if not self.is_over:
            self._state.patience.wait(grace_s, lambda: self._cut(self))

    def hold(self, why: Hold) -> None:
        """Send nothing from now on."""
        self._holds.add(why)

    def let_go(self, why: Hold) -> None:
        """Go on, unless there is another reason not to."""
        self._holds.discard(why)
        self._state.patience.renew()
        self._send()

    def played(self, ms: int) -> None:
        """So much of its sound was played."""
        if not self.is_over and self._timeline.played(ms):
            self._state.patience.renew()
            self._state.moved.set()
            self._send()

    async def run(self) -> None:
        """Speak until it is over; a listener who says nothing for too long ends it. Raises VoiceFailed, when it is over, too."""
        try:
            async with asyncio.TaskGroup() as tasks:
                speaking = tasks.create_task(self._speak())
                watching = tasks.create_task(self._watch())
                await self._state.over.wait()
                speaking.cancel()
                watching.cancel()
        except* VoiceFailed as failed:
            self._state.is_mute = True
            self.stop()
            raise VoiceFailed(str(failed.exceptions[0])) from None

    async def _speak(self) -> None:
        while (clause := await self._waiting.get()) is not None:
            if any(one.isalnum() for one in clause.text):
                await self._add(clause)
            while self._timeline.made_ms - self._timeline.sent_ms > MADE_AHEAD_MS:
                await self._move()
        self._state.is_whole = True
        self._send()
        while True:
            await self._move()

    async def _move(self) -> None:
        self._state.moved.clear()
        await self._state.moved.wait()

    async def _add(self, clause: Clause) -> None:
        """Raises VoiceFailed."""
        voice = self._output.voice or self._voice.names[0]
        spoken = await self._voice.speak(clause.text, voice=voice)
        sound = await asyncio.to_thread(_converted, spoken.pcm, spoken.rate, self._output)
        marks = self._timeline.add(sound, off=clause.off, chars=len(clause.text), marks=spoken.marks)
        self._state.marks += marks
        if self._push is not None and self._state.is_told and marks:
            self._push(self._marks(marks))
        self._send()

    async def _watch(self) -> None:
        """Whatever falls due meanwhile falls due behind this."""
        while True:
            left_s = self.patience_s
            if left_s is not None and left_s <= 0:
                break
            await asyncio.sleep(STALLED_S if left_s is None else left_s)
        self._cut(self)

    def _send(self) -> None:
        """Send what may be sent by now."""
        push = self._push
        if push is None or self._holds or self.is_over:
            return
        if int(self._timeline.sent_ms) <= self._timeline.played_ms:
            self._state.patience.renew()
        while part := self._timeline.take(PART_MS):
            self._introduce(push)
            is_last = self._state.is_whole and self._timeline.is_sent
            self._state.is_ended = is_last
            push(self._sound(part, LAST if is_last else 0))
            self._state.moved.set()
        if not self._state.is_whole:
            return
        if self._timeline.is_sent and not self._state.is_ended and self._state.is_told:
            self._state.is_ended = True
            push(self._sound(b"", LAST))
        if self._timeline.is_played:
            self.stop()

    def _introduce(self, push: Push) -> None:
        if self._state.is_told:
            return
        self._state.is_told = True
        push(
            AudioReply(
                conversation_id=self._conversation_id,
                turn_id=self.turn_id,
                stream=self._stream,
                format=self._output.format,
                rate=self._output.rate,
                from_ms=self._timeline.played_ms,
            )
        )
        if marks := tuple(one for one in self._state.marks if one.end_ms > self._timeline.played_ms):
            push(self._marks(marks))

    def _marks(self, marks: tuple[Mark, ...]) -> Marks:
        return Marks(conversation_id=self._conversation_id, turn_id=self.turn_id, marks=marks)

    def _sound(self, samples: bytes, flags: int) -> Sound:
        self._state.seq += 1
        return Sound(self._stream, self._state.seq, samples, flags, self._conversation_id, self.turn_id)


class _State:
    """Where it stands. `is_whole`: all of its sound is made; `is_told`, `is_ended`: so much its listener knows of it.

    `patience`: with him; `is_withdrawn`: its message is not to be sent; `told`: nothing more is said of what was heard.
    """

    __slots__ = (
        *("is_ended", "is_mute", "is_told", "is_whole", "is_withdrawn"),
        *("marks", "moved", "over", "patience", "said", "seq", "told"),
    )

    def __init__(self, clock: Callable[[], float], *, tells_late: bool) -> None:
        self.patience = _Patience(clock)
        self.over = asyncio.Event()
        self.moved = asyncio.Event()
        self.told = asyncio.Event()
        if not tells_late:
            self.told.set()
        self.is_whole = self.is_told = self.is_ended = self.is_mute = self.is_withdrawn = False
        self.marks: tuple[Mark, ...] = ()
        self.said = self.seq = 0


class _Patience:
    """With a listener who says nothing of what he plays, or who has left."""

    __slots__ = ("_clock", "_leaving", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float:
        """How much there is left of it."""
        return self._since + STALLED_S - self._clock()

    def renew(self) -> None:
        """He said something, or has something to say from now on."""
        self._since = self._clock()

    def wait(self, grace_s: float, end: Callable[[], None]) -> None:
        """He has left: wait for so long."""
        self.stop_waiting()
        self._leaving = asyncio.get_running_loop().call_later(grace_s, end)

    def stop_waiting(self) -> None:
        """He is back, or there is nothing to wait for."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None


def _converted(pcm: bytes, rate: int, output: AudioOutput) -> bytes:
    from speech.sound.samples import converted  # noqa: PLC0415 - numpy, which the gateway has no other use for

    return converted(pcm, rate, output.rate, Coding(output.format))
