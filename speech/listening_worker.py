"""Recognizes all speakers in the listening process, a piece at a time, with owners taking turns.

The sound of each is resampled to 16 kHz, judged by frames, and recognized at pauses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from time import monotonic
from typing import Any, assert_never

import msgspec
import numpy as np
from pocketsphinx import Vad

from speech.activity import LONGEST_MS, WINDOW_MS, EndpointDetector, SpeechEvent, SpeechEventKind, has_voice
from speech.interfaces import Heard, Listening, Partial, Paused, Resumed, Started, Stopped, word_count
from speech.process import Channel, Worker, Working
from speech.recognition import (
    Clear,
    Cleared,
    Commit,
    Listen,
    Processed,
    Ready,
    Recognized,
    Sound,
    Utterance,
)
from speech.samples import Resampler, Samples, quietest

LOOK_S = 0.1
"""How often the worker checks for speakers who send no more sound."""

Recognize = Callable[[Samples, str | None, Callable[[], None]], Utterance]
"""`speech.recognition_worker.RecognitionModel.recognize`."""


class ListenWorker(Worker["SpeechStream"]):
    """Listens to all speakers. A failure of one speaker's sound ends only that stream."""

    def __init__(
        self, channel: Channel, hello: Ready, recognize: Recognize, *, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__(channel, hello)
        self._recognize_samples = recognize
        self._clock = clock
        self._streams: dict[int, tuple[str, SpeechStream]] = {}
        self._speaking: set[int] = set()
        self._checked_at = clock()

    def step(self) -> None:
        """Do the next piece of work. A speaker who pauses waits only for the first words of those who continue speaking."""
        number, stream = self.queue.next()
        is_hurried = any(other is not stream and other.is_urgent for _, other in self._streams.values())
        try:
            heard = (
                stream.step(is_hurried=is_hurried, speakers=len(self._speaking)) if stream.has_work else None
            )
            if heard is not None:
                self.channel.send(Recognized(number, heard))
        except Exception as error:  # noqa: BLE001 - it affects only this speaker
            self._give_up(number, error)
        else:
            if not stream.has_work:
                self.queue.remove(number)
            self._continue(number)

    def take(self, message: Listen | Sound | Commit | Clear) -> None:
        """Take a message."""
        number = message.number
        try:
            if isinstance(message, Listen):
                language = message.listening.language
                stream = SpeechStream(
                    message.listening,
                    lambda samples: self._recognize_samples(samples, language, self._report_progress),
                    clock=self._clock,
                )
                self._streams[number] = message.owner, stream
            elif number in self._streams:
                self._do(message, self._streams[number][1])
        except Exception as error:  # noqa: BLE001 - it affects only this speaker
            self._give_up(number, error)
        else:
            self._continue(number)

    def leave(self, number: int) -> None:
        """Forget a speaker who left."""
        self._streams.pop(number, None)
        self._speaking.discard(number)
        super().leave(number)

    def timeout_s(self) -> float | None:
        """Return how long to wait if there is nothing to do."""
        return LOOK_S if self._speaking else None

    def catch_up(self) -> None:
        """Take new messages, and end utterances whose sound stopped coming."""
        super().catch_up()
        if self._clock() - self._checked_at < LOOK_S:
            return
        self._checked_at = self._clock()
        for number in list(self._speaking):
            self._streams[number][1].expire()
            self._continue(number)

    def _report_progress(self) -> None:
        """Report that a model works. A speaker who leaves is noticed after this piece, of some seconds."""
        self.channel.send(Working())

    def _do(self, message: Sound | Commit | Clear, stream: SpeechStream) -> None:
        match message:
            case Sound():
                stream.feed(message.sound)
            case Commit():
                stream.commit()
            case Clear():
                stream.clear()
                self.channel.send(Cleared(message.number))
            case _:
                assert_never(message)

    def _continue(self, number: int) -> None:
        """Report processed bytes, and let the stream take its next turn if it has work."""
        if number not in self._streams:
            return
        owner, stream = self._streams[number]
        (self._speaking.add if stream.is_speaking else self._speaking.discard)(number)
        if size := stream.taken():
            self.channel.send(Processed(number, size))
        if stream.has_work:
            self.queue.add(owner, number, stream)

    def _give_up(self, number: int, error: Exception) -> None:
        self._streams.pop(number, None)
        self._speaking.discard(number)
        self.fail(number, error, "What was said could not be listened to")


RATE = 16_000
FRAME_MS = 30
_FRAME_BYTES = RATE * FRAME_MS // 1000 * 2
LEAD_MS = 300
"""Sound before the first speech frame, which is recognized, too: words begin softly."""
_LEAD_FRAMES = (LEAD_MS + WINDOW_MS) // FRAME_MS
_MOST_FRAMES = LONGEST_MS // FRAME_MS
_STRICTNESS = 2
"""Of the detector, 0 to 3. At 2 it takes a tenth of a second after speech for speech; if less strict, a sixth."""
_WARM_UP_FRAMES = 180 // FRAME_MS
"""Frames at the beginning that do not count as speech: the detector takes noise for speech until it knows the room."""
PIECE_MS = 8_000
"""Sound that is processed at once: other speakers wait for one piece at most. A longer piece is cut at its quietest point."""
_PIECE_FRAMES = PIECE_MS // FRAME_MS
_SEARCHED = 1 / 3
"""The last part of a piece, in which it may be cut."""
MUTED_S = 1.0
"""Seconds without sound, beyond the silence that ends an utterance: then the microphone is off, or the network lost."""
PART_MS = 200
"""An utterance is recognized again once it has grown by this, or by eight times what the last recognition took.

With many speakers the factor is three times their number, so that these recognitions take a third of a core in all. Before there
are words that may interrupt a reply, the factor is from three, for one speaker, to eight.
"""
_PATIENCE, _PATIENCE_EACH = 8, 3
_WHISPERED_WORDS = 4
"""This many words without a voice may be whispered; fewer are a cough, a clap or a tone."""


_NOTHING = Utterance("")


class _PendingEvent(msgspec.Struct, frozen=True):
    """A moment to report. `end`: how many frames came before; `since`: how many before the first moment that it replaces.

    `is_committed`: the speaker's client ended the utterance.
    """

    moment: SpeechEvent
    end: int
    since: int
    is_committed: bool = False


class SpeechStream:
    """One speaker's sound. `feed` is quick; `step` does the work, a moment at a time."""

    def __init__(
        self,
        listening: Listening,
        recognize: Callable[[Samples], Utterance],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`recognize`: converts samples to words, which takes time. `clock`: in seconds."""
        self._detects = listening.detects
        self._recognize_samples = recognize
        self._clock = clock
        self._resampler = None if listening.rate == RATE else Resampler(listening.rate, RATE)
        self._vad: Any = Vad(mode=_STRICTNESS, sample_rate=RATE, frame_length=FRAME_MS / 1000)
        self._turns = EndpointDetector(
            frame_ms=FRAME_MS,
            pause_ms=listening.pause_ms,
            silence_ms=listening.silence_ms,
            unfinished_ms=listening.unfinished_ms,
            finished_ms=listening.finished_ms,
            threshold=listening.threshold,
        )
        self._sound = _Sound(mute_s=max(listening.silence_ms, listening.unfinished_ms) / 1000 + MUTED_S)
        self._frames = _Frames()
        self._waiting: deque[_PendingEvent] = deque()
        self._words = _Words()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._waiting)

    @property
    def is_speaking(self) -> bool:
        """Whether the speaker began and has not stopped."""
        return self._turns.is_speaking

    def feed(self, sound: bytes) -> None:
        """Take the next sound, in whole samples."""
        self._sound.came_at = self._clock()
        rest = self._sound.rest + (sound if self._resampler is None else self._resampler.part(sound))
        whole = len(rest) - len(rest) % _FRAME_BYTES
        for start in range(0, whole, _FRAME_BYTES):
            self._frame(rest[start : start + _FRAME_BYTES])
        self._sound.rest = rest[whole:]
        self._sound.note(len(sound), self._frames.end)

    def taken(self) -> int:
        """Return how many bytes of sound, beyond those reported, need no further processing."""
        return self._sound.taken(self._waiting[0].since if self._waiting else None)

    def commit(self) -> None:
        """End the utterance."""
        end = self._frames.end
        self._waiting.append(_PendingEvent(self._turns.end(), end, end, is_committed=True))

    def expire(self) -> None:
        """End the utterance if its sound stopped coming for too long."""
        if self.is_speaking and self._clock() - self._sound.came_at > self._sound.mute_s:
            self._wait_for(self._turns.end())

    def clear(self) -> None:
        """Drop what was said and not committed."""
        self._turns.reset()
        while self._waiting and not self._waiting[-1].is_committed:
            self._waiting.pop()
        self._frames.drop(self._waiting[-1].end if self._waiting else 0)
        self._sound.drop(self._frames.end)
        if not self._waiting:
            self._words = _Words()

    @property
    def is_urgent(self) -> bool:
        """Whether a silence waits for its words."""
        return any(
            waiting.moment.kind in (SpeechEventKind.PAUSED, SpeechEventKind.STOPPED)
            for waiting in self._waiting
        )

    def step(self, *, is_hurried: bool = False, speakers: int = 1) -> Heard | None:
        """Do the next piece of work; return the event, or None if the event needs more work.

        `is_hurried`: another speaker's pause waits, so further words of continuing speech can wait. `speakers`: how many speak.
        """
        waiting = self._waiting[0]
        needs_words = self._needs_words(waiting, is_hurried=is_hurried)
        if needs_words and self._frames.before(waiting.end) > _PIECE_FRAMES:
            self._settle()
            return None
        self._waiting.popleft()
        return self._event(waiting, needs_words=needs_words, speakers=speakers)

    def _event(self, waiting: _PendingEvent, *, needs_words: bool, speakers: int) -> Heard:
        moment = waiting.moment
        match moment.kind:
            case SpeechEventKind.STARTED:
                self._words = _Words(again_at=waiting.end, started_ms=moment.started_ms)
                return Started(moment.started_ms)
            case SpeechEventKind.GOING:
                if needs_words:
                    self._try(waiting.end, speakers=speakers)
                return Partial(
                    moment.at_ms, self._words.last.text, needs_words, self._words.last.is_confident
                )
            case SpeechEventKind.PAUSED:
                return self._pause(waiting)
            case SpeechEventKind.RESUMED:
                self._words.paused = _NOTHING
                return Resumed(moment.at_ms)
            case SpeechEventKind.STOPPED:
                return self._stop(waiting)

    def _frame(self, frame: bytes) -> None:
        self._frames.put(frame)
        if not self._detects:
            self._turns.pass_by()
            return
        is_speech = bool(self._vad.is_speech(frame)) and self._frames.end > _WARM_UP_FRAMES
        moment = self._turns.take(is_speech=is_speech)
        if moment is not None:
            self._wait_for(moment)
        elif not self._turns.is_speaking and not self._waiting:
            self._frames.forget(self._frames.end - _LEAD_FRAMES)

    def _wait_for(self, moment: SpeechEvent) -> None:
        """Note a moment to report. Of continuing speech only the newest moment is reported."""
        since = end = self._frames.end
        if self._waiting and moment.kind is self._waiting[-1].moment.kind is SpeechEventKind.GOING:
            since = self._waiting.pop().since
        self._waiting.append(_PendingEvent(moment, end, since))

    def _needs_words(self, waiting: _PendingEvent, *, is_hurried: bool) -> bool:
        match waiting.moment.kind:
            case SpeechEventKind.GOING:
                is_newest, can_wait = len(self._waiting) == 1, is_hurried and bool(self._words.last.text)
                return is_newest and not can_wait and waiting.end >= self._words.again_at
            case SpeechEventKind.STOPPED:
                return not self._words.paused.text
            case kind:
                return kind is SpeechEventKind.PAUSED

    def _settle(self) -> None:
        """Recognize the beginning of the utterance, for good."""
        piece = _samples(self._frames.until(self._frames.first + _PIECE_FRAMES))
        frame = RATE * FRAME_MS // 1000
        most = len(piece)
        cut = quietest(piece, int(most * (1 - _SEARCHED)), most, RATE) // frame
        self._words.settle(self._recognize(piece[: cut * frame]))
        self._frames.forget(self._frames.first + cut)

    def _pause(self, waiting: _PendingEvent) -> Heard:
        words = self._understood(waiting.end)
        # After more silence, nothing may be understood of an incomplete sentence.
        self._words.paused = paused = words if words.text else self._words.paused
        self._judge(waiting, is_whole=words.is_whole)
        return Paused(waiting.moment.at_ms, paused.text, words.is_whole is not False, paused.is_confident)

    def _judge(self, pause: _PendingEvent, *, is_whole: bool | None) -> None:
        """End the utterance if the pause was long enough, even if speech resumed before this was known."""
        if not self._waiting:
            if (ended := self._turns.judge(is_whole=is_whole)) is not None:
                self._wait_for(ended)
            return
        resumed = self._waiting[0]
        at_ms = resumed.moment.at_ms
        if resumed.moment.kind is SpeechEventKind.RESUMED and self._turns.would_end(
            pause.moment, resumed.moment, is_whole=is_whole
        ):
            end = max(pause.end, resumed.end - _LEAD_FRAMES)
            stopped = msgspec.structs.replace(pause.moment, kind=SpeechEventKind.STOPPED)
            self._waiting[0] = _PendingEvent(
                SpeechEvent(SpeechEventKind.STARTED, at_ms, at_ms), resumed.end, resumed.since
            )
            self._waiting.appendleft(_PendingEvent(stopped, end, resumed.since))

    def _stop(self, waiting: _PendingEvent) -> Heard:
        words = self._words
        # Where nothing was understood at the pause, the word may have continued too softly for the detector.
        last = words.paused if words.paused.text else self._understood(waiting.end)
        self._words = _Words()
        self._frames.forget(waiting.end)
        started_ms = max(words.started_ms, waiting.moment.started_ms)
        return Stopped(started_ms, waiting.moment.at_ms, last.text, waiting.is_committed, last.is_confident)

    def _try(self, end: int, *, speakers: int) -> None:
        """Recognize the words so far; do so again after a multiple of the time that this takes, sooner if there were none."""
        began = self._clock()
        words = self._understood(end)
        self._words.last = words if words.text else msgspec.structs.replace(words, text=words.beginning)
        took_ms = (self._clock() - began) * 1000
        patience = max(_PATIENCE, _PATIENCE_EACH * speakers)
        if not (self._words.last.text and words.is_confident):  # only confident words interrupt a reply
            patience = min(_PATIENCE, max(_PATIENCE_EACH, speakers))
        self._words.again_at = end + int(max(PART_MS, took_ms * patience)) // FRAME_MS

    def _understood(self, end: int) -> Utterance:
        """Return all words up to a frame."""
        pcm = self._frames.until(end)
        return self._words.whole(self._recognize(_samples(pcm)) if pcm else _NOTHING)

    def _recognize(self, samples: Samples) -> Utterance:
        """Return the words of some sound; a few words without a voice do not count."""
        words = self._recognize_samples(samples)
        if self._detects and (words.text or words.beginning) and not has_voice(samples, RATE):
            is_whispered = word_count(words.text) >= _WHISPERED_WORDS
            words = Utterance(words.text, words.is_whole, is_confident=False) if is_whispered else _NOTHING
        return words


def _samples(pcm: bytes) -> Samples:
    return np.frombuffer(pcm, np.dtype("<i2")).astype(np.int16)


class _Sound:
    """Received, unprocessed sound. `rest`: less than a frame; `came_at`: when the newest came; `mute_s`: see `MUTED_S`."""

    __slots__ = ("_fed", "came_at", "mute_s", "rest")

    def __init__(self, *, mute_s: float) -> None:
        self.rest = b""
        self.came_at = 0.0
        self.mute_s = mute_s
        self._fed: deque[tuple[int, int]] = deque()

    def note(self, size: int, end: int) -> None:
        """Count received bytes and frames, with one entry for each frame: small parts are added up."""
        if self._fed and self._fed[-1][0] == end:
            size += self._fed.pop()[1]
        self._fed.append((end, size))

    def taken(self, end: int | None) -> int:
        """Return how many unreported bytes came before the frame `end`; None: in all."""
        size = 0
        while self._fed and (end is None or self._fed[0][0] < end):
            size += self._fed.popleft()[1]
        return size

    def drop(self, end: int) -> None:
        """Forget frames from `end` on."""
        self.rest = b""
        self._fed = deque((min(at, end), size) for at, size in self._fed)


class _Words:
    """The words so far. `paused`: all of them, during a pause. `started_ms`: when their utterance was reported to begin."""

    __slots__ = ("_settled", "again_at", "last", "paused", "started_ms")

    def __init__(self, *, again_at: int = 0, started_ms: int = 0) -> None:
        self._settled = _NOTHING
        self.started_ms = started_ms
        self.last = self.paused = _NOTHING
        self.again_at = again_at

    def settle(self, words: Utterance) -> None:
        """Note words that are not recognized again."""
        self._settled = self.whole(words)

    def whole(self, words: Utterance) -> Utterance:
        """Return the settled words followed by `words`; they are confident if both are."""
        return msgspec.structs.replace(
            words,
            text=f"{self._settled.text} {words.text}".strip(),
            is_confident=self._settled.is_confident and words.is_confident,
        )


class _Frames:
    """The frames that may still have to be recognized, the newest minute at most."""

    __slots__ = ("_kept", "first")

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque(maxlen=_MOST_FRAMES + _LEAD_FRAMES)
        self.first = 0

    @property
    def end(self) -> int:
        """How many frames have come."""
        return self.first + len(self._kept)

    def put(self, frame: bytes) -> None:
        self.first += len(self._kept) == self._kept.maxlen
        self._kept.append(frame)

    def before(self, end: int) -> int:
        """Return how many of the first `end` frames are kept."""
        return max(0, end - self.first)

    def until(self, end: int) -> bytes:
        """Return those of the first `end` frames that are kept."""
        return b"".join(islice(self._kept, self.before(end)))

    def forget(self, end: int) -> None:
        """Drop the first `end` frames."""
        for _ in range(min(self.before(end), len(self._kept))):
            self._kept.popleft()
            self.first += 1

    def drop(self, end: int) -> None:
        """Drop the frames after the first `end`."""
        while self._kept and self.end > end:
            self._kept.pop()
