"""The sound of one speaker in the listening process: brought to 16 kHz, judged frame by frame, understood at its pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from time import monotonic
from typing import Any

import msgspec
import numpy as np
from pocketsphinx import Vad

from speech.activity.turns import LONGEST_MS, WINDOW_MS, Kind, Moment, TurnDetector
from speech.contract import Heard, Listening, Partly, Paused, Resumed, Started, Stopped
from speech.sound.samples import Resampler, Samples, linear

RATE = 16_000
FRAME_MS = 30
_FRAME_BYTES = RATE * FRAME_MS // 1000 * 2
LEAD_MS = 300
"""Sound before the first frame that counted as speech: words begin softly."""
_LEAD_FRAMES = (LEAD_MS + WINDOW_MS) // FRAME_MS
_MOST_FRAMES = LONGEST_MS // FRAME_MS
_WARM_UP_FRAMES = 180 // FRAME_MS
"""The first sound of a stream is no speech: until it knows the room's noise, the detector takes that for speech."""
PART_MS = 200
"""What is being said is understood anew once there is so much more of it, or eight times what the last time took."""
_PATIENCE = 8

Understand = Callable[[Samples], str]


class _Waiting(msgspec.Struct, frozen=True):
    """A moment that is to be told. `end`: so many frames had come by then."""

    moment: Moment
    end: int


class SpeechStream:
    """One speaker. `feed` is quick; `step` does the work, a moment at a time."""

    def __init__(
        self, listening: Listening, understand: Understand, *, clock: Callable[[], float] = monotonic
    ) -> None:
        """`understand`: from samples to words, which takes its time. `clock`: in seconds."""
        self._coding, self._detects = listening.coding, listening.detects
        self._understand = understand
        self._clock = clock
        self._resampler = None if listening.rate == RATE else Resampler(listening.rate, RATE)
        self._vad: Any = Vad(mode=1, sample_rate=RATE, frame_length=FRAME_MS / 1000)
        self._turns = TurnDetector(
            frame_ms=FRAME_MS,
            pause_ms=listening.pause_ms,
            silence_ms=listening.silence_ms,
            threshold=listening.threshold,
        )
        self._rest = b""
        self._frames = _Frames()
        self._waiting: deque[_Waiting] = deque()
        self._words = _Words()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._waiting)

    def feed(self, sound: bytes) -> None:
        """Take the next sound, whole samples."""
        pcm = linear(self._coding, sound).astype("<i2").tobytes()
        self._rest += pcm if self._resampler is None else self._resampler.part(pcm)
        whole = len(self._rest) - len(self._rest) % _FRAME_BYTES
        for start in range(0, whole, _FRAME_BYTES):
            self._frame(self._rest[start : start + _FRAME_BYTES])
        self._rest = self._rest[whole:]

    def commit(self) -> None:
        """What came so far is all that is said."""
        self._wait_for(self._turns.end())

    def clear(self) -> None:
        """Forget what is being said."""
        self._turns.reset()
        self._waiting.clear()
        self._words = _Words()
        self._frames.forget(self._frames.end)

    def step(self) -> Heard:
        """Do the next piece of work, and return what is to be told."""
        waiting = self._waiting.popleft()
        moment = waiting.moment
        match moment.kind:
            case Kind.STARTED:
                self._words = _Words(again_at=waiting.end)
                return Started(moment.started_ms)
            case Kind.GOING:
                self._try(waiting.end)
                return Partly(moment.at_ms, self._words.text)
            case Kind.PAUSED:
                self._words.paused = self._understood(waiting.end)
                return Paused(moment.at_ms, self._words.paused)
            case Kind.RESUMED:
                self._words.paused = None
                return Resumed(moment.at_ms)
            case Kind.STOPPED:
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

    def _wait_for(self, moment: Moment) -> None:
        self._waiting.append(_Waiting(moment, self._frames.end))

    def _stop(self, waiting: _Waiting) -> Heard:
        words = self._words
        text = self._understood(waiting.end) if words.paused is None else words.paused
        self._words = _Words()
        self._frames.forget(waiting.end)
        return Stopped(waiting.moment.started_ms, waiting.moment.at_ms, text)

    def _try(self, end: int) -> None:
        """Understand what there is so far, if nothing else waits and it is time."""
        if self._waiting or end < self._words.again_at:
            return
        began = self._clock()
        self._words.text = self._understood(end)
        took_ms = (self._clock() - began) * 1000
        self._words.again_at = end + int(max(PART_MS, took_ms * _PATIENCE)) // FRAME_MS

    def _understood(self, end: int) -> str:
        pcm = self._frames.until(end)
        return self._understand(np.frombuffer(pcm, np.dtype("<i2")).astype(np.int16)) if pcm else ""


class _Words:
    """What is understood so far. `paused`: all of it, while there is a pause."""

    __slots__ = ("again_at", "paused", "text")

    def __init__(self, *, again_at: int = 0) -> None:
        self.text = ""
        self.paused: str | None = None
        self.again_at = again_at


class _Frames:
    """The frames that may still have to be understood, the newest minute at most."""

    __slots__ = ("_first", "_kept")

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque(maxlen=_MOST_FRAMES + _LEAD_FRAMES)
        self._first = 0

    @property
    def end(self) -> int:
        """How many have come."""
        return self._first + len(self._kept)

    def put(self, frame: bytes) -> None:
        self._first += len(self._kept) == self._kept.maxlen
        self._kept.append(frame)

    def until(self, end: int) -> bytes:
        """Return those that had come when there were `end`."""
        return b"".join(islice(self._kept, max(0, end - self._first)))

    def forget(self, end: int) -> None:
        """Drop them."""
        for _ in range(min(max(0, end - self._first), len(self._kept))):
            self._kept.popleft()
            self._first += 1
