"""The reply of one turn as sound: spoken clause by clause as it is written, sent as it is played, over once heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from connections.protocol.audio import LAST, AudioOutput, AudioReply, Marks, Sound
from connections.protocol.frames import Frame
from connections.voice.timeline import Timeline
from sessions.events import Delta
from sessions.turn.message_request import Precision
from speech.errors import VoiceFailed
from speech.interfaces import Mark, Voice
from speech.sound.wav import Coding
from speech.voice.clauses import Clause, Clauses

FRAME_MS = 40
"""Milliseconds of sound in one binary frame."""
SYNTHESIZE_AHEAD_MS = 2000
"""No clause is spoken while this much sound waits to be sent, so that little is lost if the reply is cut."""
LISTENER_TIMEOUT_S = 10.0
"""A listener that reports nothing for this long, although sound was sent, counts as gone."""
REPORT_TIMEOUT_S = 0.5
"""How long a cut waits for a listener that reports only then how much was heard."""

Push = Callable[[Frame], None]


class SpokenReply:
    """The `Playback` of a turn. `run` speaks; of the other methods only `over` and `settled` wait."""

    def __init__(
        self,
        voice: Voice,
        output: AudioOutput,
        *,
        conversation_id: str,
        stream: int,
        cut: Callable[[SpokenReply], None],
        reports_late: bool = False,
        is_guess: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`stream`: the number of its binary frames. `cut`: ends its turn at what was heard, once the turn has an id.

        `reports_late`: its listener may report what was heard after the cut. `is_guess`: no sound is sent until `confirm`.
        """
        self._voice, self._output = voice, output
        self._conversation_id, self._stream = conversation_id, stream
        self._timeline = Timeline(rate=output.rate, width=2 if output.format == "pcm16" else 1)
        self._clauses = Clauses()
        self._waiting: asyncio.Queue[Clause | None] = asyncio.Queue()
        self._state = _PlaybackState(clock, reports_late=reports_late)
        self._cut = cut
        self._push: Push | None = None
        self.turn_id = ""
        self.is_guess = is_guess
        """Whether its user may continue: nobody knows of the reply yet."""

    @property
    def is_over(self) -> bool:
        """Whether no more of it is played."""
        return self._state.over.is_set()

    @property
    def played_ms(self) -> int:
        """How much of its sound was played."""
        return self._timeline.played_ms

    @property
    def heard(self) -> int:
        """How much of its text was heard: possibly all that was sent, while its listener may still report.

        If the voice failed, all of it counts, since it was left to be read.
        """
        if self._state.has_failed:
            return self._state.text_chars
        return self._timeline.heard if self._state.reported.is_set() else self._timeline.sent_off

    @property
    def precision(self) -> Precision:
        """How exact that is."""
        return self._timeline.precision

    @property
    def is_withdrawn(self) -> bool:
        """Whether its message was taken back before its turn began: then it must not be sent."""
        return self._state.is_withdrawn

    @property
    def listener_timeout_s(self) -> float | None:
        """How long its listener may report nothing before it counts as gone; None: it has nothing to report."""
        waits = self._push is not None and int(self._timeline.sent_ms) > self._timeline.played_ms
        return self._state.timeout.left_s if waits else None

    def begin(self, turn_id: str) -> None:
        """Note its turn's id. If it was cut before, the turn ends as soon as possible."""
        self.turn_id = turn_id
        if self.is_over:
            asyncio.get_running_loop().call_soon(self._cut, self)

    def feed(self, text: Delta) -> None:
        """Take more text. It is limited by the length of a reply."""
        self._state.text_chars = text.off + len(text.text)
        for clause in self._clauses.feed(text.text):
            self._waiting.put_nowait(clause)

    async def over(self) -> None:
        """End the text; return once it was played, or stopped."""
        for clause in self._clauses.finish():
            self._waiting.put_nowait(clause)
        self._waiting.put_nowait(None)
        await self._state.over.wait()

    async def settled(self) -> None:
        """Wait for the listener's report, if it may send one. Without a report, what was played until then counts."""
        if self._push is not None and self._timeline.sent_ms:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_TIMEOUT_S):
                    await self._state.reported.wait()
        self._state.reported.set()

    def stop_at(self, ms: int) -> None:
        """Note how much of its sound its listener heard, and stop."""
        self._timeline.stop_at(ms)
        self._state.reported.set()

    def stop(self) -> None:
        """Stop playing."""
        self._state.timeout.stop_waiting()
        self._state.over.set()
        self._state.progressed.set()

    def withdraw(self) -> None:
        """Note that its message must not be sent, if it was not yet."""
        self._state.is_withdrawn = True
        self.stop()

    def attach(self, push: Push) -> None:
        """Send to a new listener, from what was played so far."""
        self._state.timeout.stop_waiting()
        self._state.timeout.renew()
        self._push = push
        self._state.is_announced = self._state.is_ended = False
        self._timeline.rewind()
        self._send()

    def detach(self, grace_s: float) -> None:
        """Note that its listener left. After the grace period its turn ends, whoever else is attached."""
        self._push = None
        self._state.reported.set()
        if not self.is_over:
            self._state.timeout.wait(grace_s, lambda: self._cut(self))

    def confirm(self) -> None:
        """Send its sound: it was no wrong guess."""
        self.is_guess = False
        self._state.timeout.renew()
        self._send()

    def played(self, ms: int) -> None:
        """Note how much of its sound was played."""
        if not self.is_over and self._timeline.played(ms):
            self._state.timeout.renew()
            self._state.progressed.set()
            self._send()

    async def run(self) -> None:
        """Speak until it is over; a silent listener ends it. Raises VoiceFailed, even if it is over."""
        failed: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                speaking = tasks.create_task(self._speak())
                watching = tasks.create_task(self._watch())
                await self._state.over.wait()
                speaking.cancel()
                watching.cancel()
        except* VoiceFailed as voices:
            self._state.has_failed = True
            self.stop()
            failed += voices.exceptions
        if failed:
            raise VoiceFailed(str(failed[0]))

    async def _speak(self) -> None:
        while (clause := await self._waiting.get()) is not None:
            if any(one.isalnum() for one in clause.text):
                await self._add(clause)
            while self._timeline.synthesized_ms - self._timeline.sent_ms > SYNTHESIZE_AHEAD_MS:
                await self._wait_for_progress()
        self._state.is_whole = True
        self._send()
        while True:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        self._state.progressed.clear()
        await self._state.progressed.wait()

    async def _add(self, clause: Clause) -> None:
        """Add a clause. Raises VoiceFailed."""
        voice = self._output.voice or self._voice.names[0]
        spoken = await self._voice.speak(clause.text, voice=voice)
        sound = await asyncio.to_thread(_converted, spoken.pcm, spoken.rate, self._output)
        marks = self._timeline.add(sound, off=clause.off, chars=len(clause.text), marks=spoken.marks)
        self._state.marks += marks
        if self._push is not None and self._state.is_announced and marks:
            self._push(self._marks(marks))
        self._send()

    async def _watch(self) -> None:
        """Cut the turn once the listener's patience is up, which can only be prolonged meanwhile."""
        while True:
            left_s = self.listener_timeout_s
            if left_s is not None and left_s <= 0:
                break
            await asyncio.sleep(LISTENER_TIMEOUT_S if left_s is None else left_s)
        self._cut(self)

    def _send(self) -> None:
        """Send what is due."""
        push = self._push
        if push is None or self.is_guess or self.is_over:
            return
        if int(self._timeline.sent_ms) <= self._timeline.played_ms:
            self._state.timeout.renew()
        while part := self._timeline.take(FRAME_MS):
            self._announce(push)
            is_last = self._state.is_whole and self._timeline.is_sent
            self._state.is_ended = is_last
            push(self._sound(part, LAST if is_last else 0))
            self._state.progressed.set()
        if not self._state.is_whole:
            return
        if self._timeline.is_sent and not self._state.is_ended and self._state.is_announced:
            self._state.is_ended = True
            push(self._sound(b"", LAST))
        if self._timeline.is_played:
            self.stop()

    def _announce(self, push: Push) -> None:
        if self._state.is_announced:
            return
        self._state.is_announced = True
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


class _PlaybackState:
    """Its state. `is_whole`: all of its sound is made; `is_announced`, `is_ended`: what its listener knows of it.

    `timeout`: with its listener; `is_withdrawn`: its message must not be sent; `reported`: no more reports will come.
    """

    __slots__ = (
        *("is_ended", "has_failed", "is_announced", "is_whole", "is_withdrawn"),
        *("marks", "progressed", "over", "timeout", "text_chars", "seq", "reported"),
    )

    def __init__(self, clock: Callable[[], float], *, reports_late: bool) -> None:
        self.timeout = _ListenerTimeout(clock)
        self.over = asyncio.Event()
        self.progressed = asyncio.Event()
        self.reported = asyncio.Event()
        if not reports_late:
            self.reported.set()
        self.is_whole = self.is_announced = self.is_ended = self.has_failed = self.is_withdrawn = False
        self.marks: tuple[Mark, ...] = ()
        self.text_chars = self.seq = 0


class _ListenerTimeout:
    """Patience with a listener that reports nothing, or has left."""

    __slots__ = ("_clock", "_leaving", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float:
        """The seconds left."""
        return self._since + LISTENER_TIMEOUT_S - self._clock()

    def renew(self) -> None:
        """Note a report, or that there is something to report from now on."""
        self._since = self._clock()

    def wait(self, grace_s: float, end: Callable[[], None]) -> None:
        """Wait for a listener that left."""
        self.stop_waiting()
        self._leaving = asyncio.get_running_loop().call_later(grace_s, end)

    def stop_waiting(self) -> None:
        """Note that it came back, or that there is nothing to wait for."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None


def _converted(pcm: bytes, rate: int, output: AudioOutput) -> bytes:
    from speech.sound.samples import converted  # noqa: PLC0415 - numpy, which the gateway has no other use for

    return converted(pcm, rate, output.rate, Coding(output.format))
