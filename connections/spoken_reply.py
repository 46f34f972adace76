"""The reply of one turn as sound: spoken clause by clause as it is written, sent as it is played, over once heard."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from time import monotonic

import msgspec

from connections.protocol.audio import LAST, AudioOutput, AudioReply, Marks, Sound
from connections.protocol.frames import Frame
from sessions.events import Delta
from sessions.turn.interfaces import Precision
from speech.clauses import Clause, Clauses
from speech.errors import VoiceFailed
from speech.espeak import Espeak
from speech.interfaces import WIDTH, Mark

FRAME_MS = 40
"""Milliseconds of sound in one binary frame."""
SYNTHESIZE_AHEAD_MS = 2000
"""No clause is spoken while this much sound waits to be sent, so that little is lost if the reply is cut."""
LISTENER_TIMEOUT_S = 10.0
"""A listener that reports nothing for this long, although sound was sent, is considered gone."""
REPORT_TIMEOUT_S = 0.5
"""How long a cut waits for a listener that reports only afterwards how much was heard."""
Push = Callable[[Frame], None]
AHEAD_MS = 400
"""The most sound that is sent ahead of playback, so that little has been sent of what a cut removes."""


class SpokenReply:
    """The `Player` of a turn. `run` speaks; of the other methods only `over` and `settled` wait."""

    def __init__(
        self,
        voice: Espeak,
        output: AudioOutput,
        *,
        conversation_id: str,
        stream: int,
        cut: Callable[[SpokenReply], None],
        reports_late: bool = False,
        is_guess: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`stream`: the id in its binary frames. `cut`: ends its turn at what was heard, once the turn has an id.

        `reports_late`: its listener may report what was heard after the cut. `is_guess`: no sound is sent until `confirm`.
        """
        self._voice, self._output = voice, output
        self._conversation_id, self._stream = conversation_id, stream
        self._timeline = Timeline(rate=output.rate)
        self._clauses = Clauses()
        self._waiting: asyncio.Queue[Clause | None] = asyncio.Queue()
        self._clock = clock
        # When its listener last reported, or last had nothing to report.
        self._reported_at = clock()
        self._leaving: asyncio.TimerHandle | None = None  # ends its turn, unless its listener reconnects
        self._ended = asyncio.Event()
        self._progressed = asyncio.Event()
        self._reported = asyncio.Event()  # no more reports of what was heard will come
        if not reports_late:
            self._reported.set()
        self._is_whole = False  # all of its sound is made
        self._is_announced = self._sent_end = False  # what its listener has been sent about it
        self._failure: VoiceFailed | None = None
        self._made_marks: tuple[Mark, ...] = ()
        self._text_chars = self._seq = 0
        self._cut = cut
        self._push: Push | None = None
        self.turn_id = ""
        self.is_guess = is_guess
        """Whether the user may still continue speaking: nobody knows about the reply yet."""
        self.is_withdrawn = False
        """Whether its message was taken back before its turn began: then it must not be sent."""

    @property
    def is_over(self) -> bool:
        """Whether no more of it is played."""
        return self._ended.is_set()

    @property
    def played_ms(self) -> int:
        """How much of its sound was played."""
        return self._timeline.played_ms

    @property
    def heard(self) -> int:
        """How much of its text was heard; all that was sent, while its listener may still report.

        If the voice failed, all of it counts, since it was left to be read.
        """
        if self._failure is not None:
            return self._text_chars
        return self._timeline.heard if self._reported.is_set() else self._timeline.sent_off

    @property
    def precision(self) -> Precision:
        """How exact `heard` is."""
        return self._timeline.precision

    @property
    def listener_timeout_s(self) -> float | None:
        """How long its listener may report nothing before it counts as gone; None: it has nothing to report."""
        waits = self._push is not None and int(self._timeline.sent_ms) > self._timeline.played_ms
        return self._reported_at + LISTENER_TIMEOUT_S - self._clock() if waits else None

    def begin(self, turn_id: str) -> None:
        """Note the turn's id. If the reply was cut before, the turn ends as soon as possible."""
        self.turn_id = turn_id
        if self.is_over:
            asyncio.get_running_loop().call_soon(self._cut, self)

    def feed(self, text: Delta) -> None:
        """Take more text. Its amount is limited by the length of a reply."""
        self._text_chars = text.off + len(text.text)
        for clause in self._clauses.feed(text.text):
            self._waiting.put_nowait(clause)

    async def over(self) -> None:
        """End the text; return once it has been played, or stopped."""
        for clause in self._clauses.finish():
            self._waiting.put_nowait(clause)
        self._waiting.put_nowait(None)
        await self._ended.wait()

    async def settled(self) -> None:
        """Wait for the listener's report, if it may send one. Without a report, what was played until then counts."""
        if self._push is not None and self._timeline.sent_ms:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_TIMEOUT_S):
                    await self._reported.wait()
        self._reported.set()

    def stop_at(self, ms: int) -> None:
        """Note how much of its sound its listener heard, and stop."""
        self._timeline.stop_at(ms)
        self._reported.set()

    def stop(self) -> None:
        """Stop playing."""
        self._cancel_cut()
        self._ended.set()

    def withdraw(self) -> None:
        """Note that its message must not be sent if it has not been sent yet."""
        self.is_withdrawn = True
        self.stop()

    def attach(self, push: Push) -> None:
        """Send to a new listener, from the played position."""
        self._cancel_cut()
        self._reported_at = self._clock()
        self._push = push
        self._is_announced = self._sent_end = False
        self._timeline.rewind()
        self._send()

    def detach(self, grace_s: float) -> None:
        """Note that its listener left. After the grace period its turn ends, even if other connections are attached."""
        self._push = None
        self._reported.set()
        if not self.is_over:
            self._cancel_cut()
            self._leaving = asyncio.get_running_loop().call_later(grace_s, self._cut, self)

    def _cancel_cut(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def confirm(self) -> None:
        """Send its sound: the guess was right."""
        self.is_guess = False
        self._reported_at = self._clock()
        self._send()

    def played(self, ms: int) -> None:
        """Note how much of its sound was played."""
        if not self.is_over and self._timeline.played(ms):
            self._reported_at = self._clock()
            self._progressed.set()
            self._send()

    async def run(self) -> None:
        """Speak until the reply is over; a silent listener ends it. Raises VoiceFailed, even if the reply is over."""
        async with asyncio.TaskGroup() as tasks:
            speaking = tasks.create_task(self._speak())
            watching = tasks.create_task(self._watch())
            await self._ended.wait()
            speaking.cancel()
            watching.cancel()
        if self._failure is not None:
            raise self._failure

    async def _speak(self) -> None:
        while (clause := await self._waiting.get()) is not None:
            if any(one.isalnum() for one in clause.text):
                try:
                    await self._add(clause)
                except VoiceFailed as failure:
                    self._failure = failure
                    self.stop()
                    return
            while self._timeline.synthesized_ms - self._timeline.sent_ms > SYNTHESIZE_AHEAD_MS:
                self._progressed.clear()
                await self._progressed.wait()
        self._is_whole = True
        self._send()

    async def _add(self, clause: Clause) -> None:
        """Add a clause. Raises VoiceFailed."""
        voice = self._output.voice or self._voice.names[0]
        spoken = await self._voice.speak(clause.text, voice=voice)
        sound = await asyncio.to_thread(converted, spoken.pcm, spoken.rate, self._output.rate)
        marks = self._timeline.add(sound, off=clause.off, chars=len(clause.text), marks=spoken.marks)
        self._made_marks += marks
        if self._push is not None and self._is_announced and marks:
            self._push(self._marks(marks))
        self._send()

    async def _watch(self) -> None:
        """Cut the turn once the listener's timeout has passed; reports can only extend it."""
        while True:
            left_s = self.listener_timeout_s
            if left_s is not None and left_s <= 0:
                break
            await asyncio.sleep(LISTENER_TIMEOUT_S if left_s is None else left_s)
        self._cut(self)

    def _send(self) -> None:
        """Send the sound that is due."""
        push = self._push
        if push is None or self.is_guess or self.is_over:
            return
        if int(self._timeline.sent_ms) <= self._timeline.played_ms:
            self._reported_at = self._clock()
        while part := self._timeline.take(FRAME_MS):
            self._announce(push)
            is_last = self._is_whole and self._timeline.is_sent
            self._sent_end = is_last
            push(self._sound(part, LAST if is_last else 0))
            self._progressed.set()
        if not self._is_whole:
            return
        if self._timeline.is_sent and not self._sent_end and self._is_announced:
            self._sent_end = True
            push(self._sound(b"", LAST))
        if self._timeline.is_played:
            self.stop()

    def _announce(self, push: Push) -> None:
        if self._is_announced:
            return
        self._is_announced = True
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
        if marks := tuple(one for one in self._made_marks if one.end_ms > self._timeline.played_ms):
            push(self._marks(marks))

    def _marks(self, marks: tuple[Mark, ...]) -> Marks:
        return Marks(conversation_id=self._conversation_id, turn_id=self.turn_id, marks=marks)

    def _sound(self, samples: bytes, flags: int) -> Sound:
        self._seq += 1
        return Sound(self._stream, self._seq, samples, flags, self._conversation_id, self.turn_id)


def converted(pcm: bytes, from_rate: int, to_rate: int) -> bytes:
    """Return sound at the listener's rate."""
    from speech import samples  # noqa: PLC0415 - numpy, which the gateway has no other use for

    return samples.converted(pcm, from_rate, to_rate)


class _Boundary(msgspec.Struct, frozen=True):
    """The text before `off` was heard once `at_ms` was played."""

    at_ms: int
    off: int
    is_word: bool


class Timeline:
    """A reply's sound and words in time, in milliseconds from its first sample."""

    def __init__(self, *, rate: int) -> None:
        self._rate = rate
        self._sound = bytearray()
        self._dropped = self._sent = 0
        self._boundaries = [_Boundary(0, 0, is_word=True)]
        self.played_ms = 0

    @property
    def synthesized_ms(self) -> float:
        """The length of all sound so far."""
        return self._ms(self._dropped + len(self._sound))

    @property
    def sent_ms(self) -> float:
        """How much was sent."""
        return self._ms(self._sent)

    @property
    def is_sent(self) -> bool:
        """Whether all that was made was sent."""
        return self._sent == self._dropped + len(self._sound)

    @property
    def is_played(self) -> bool:
        """Whether all that was made was played."""
        return self.is_sent and self.played_ms >= int(self.synthesized_ms)

    @property
    def heard(self) -> int:
        """The offset after the last word that was played to its end."""
        return self._boundaries[self._index_at(self.played_ms) - 1].off

    @property
    def sent_off(self) -> int:
        """The offset after the last word that was sent to its end."""
        return self._boundaries[self._index_at(ceil(self.sent_ms)) - 1].off

    @property
    def precision(self) -> Precision:
        """How exact a cut now would be."""
        place = self._index_at(self.played_ms)
        around = self._boundaries[place - 1 : place + 1]
        return "word" if all(end.is_word for end in around) else "chunk"

    def add(self, sound: bytes, *, off: int, chars: int, marks: tuple[Mark, ...] | None) -> tuple[Mark, ...]:
        """Take a clause's sound with its own marks; return the marks for the whole reply."""
        begun_ms = self.synthesized_ms
        self._sound += sound
        if marks is None:
            self._boundaries.append(_Boundary(ceil(self.synthesized_ms), off + chars, is_word=False))
            return ()
        moved = tuple(
            Mark(
                off=off + mark.off,
                len=mark.len,
                start_ms=int(begun_ms + mark.start_ms),
                end_ms=ceil(begun_ms + mark.end_ms),
            )
            for mark in marks
        )
        self._boundaries += [_Boundary(mark.end_ms, mark.off + mark.len, is_word=True) for mark in moved]
        return moved

    def take(self, most_ms: int) -> bytes:
        """Return up to `most_ms` of sound to send; empty if it is not due, or there is none."""
        until = min(self._bytes(self.played_ms + AHEAD_MS), self._sent + self._bytes(most_ms))
        part = bytes(self._sound[self._sent - self._dropped : max(0, until - self._dropped)])
        self._sent += len(part)
        return part

    def played(self, ms: int) -> bool:
        """Note how much of the sent sound was played; return whether that is more than before."""
        ms = min(ms, ceil(self.sent_ms))
        if ms <= self.played_ms:
            return False
        self.played_ms = ms
        done = min(self._bytes(ms), self._sent) - self._dropped
        del self._sound[:done]
        self._dropped += done
        return True

    def stop_at(self, ms: int) -> None:
        """Note that the sent sound was heard up to `ms` and no further, whatever was noted before."""
        self.played_ms = min(ms, ceil(self.sent_ms))

    def rewind(self) -> None:
        """Note that the listener lost sound that was sent and not played: it is sent again."""
        self._sent = self._dropped

    def _index_at(self, ms: int) -> int:
        return bisect_right(self._boundaries, ms, key=lambda end: end.at_ms)

    def _ms(self, size: int) -> float:
        return size / WIDTH * 1000 / self._rate

    def _bytes(self, ms: float) -> int:
        return int(ms * self._rate / 1000) * WIDTH
