"""Recognizes recordings in a recognizer's process, a window of sound at a time, and the interface of its models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from speech.process import Channel, Worker
from speech.recognition import Finished, Ready, Segment, SegmentRecognized, Transcribe, Utterance
from speech.samples import Samples, mono


class Abandoned(Exception):
    """Nobody waits for the result any more."""


class RecognitionModel(Protocol):
    """A model, and its facts for the gateway."""

    rate: int
    facts: Ready

    def windows(self, samples: Samples) -> Sequence[tuple[int, int]]:
        """Return the beginning and the end of each part of a recording that is recognized at once; silence may be left out."""
        ...

    def transcribe(self, samples: Samples, language: str | None, check: Callable[[], None]) -> list[Segment]:
        """Recognize a window; times begin with it. `check` is called before every step, and may raise."""
        ...

    def recognize(self, samples: Samples, language: str | None, check: Callable[[], None]) -> Utterance:
        """Return the words of a speaker so far; empty if nothing was understood."""
        ...


class RecognizerWorker(Worker["_Recording"]):
    """Recognizes a window of one recording after another, and checks between steps whether its client left."""

    def __init__(self, channel: Channel, model: RecognitionModel) -> None:
        super().__init__(channel, model.facts)
        self._model = model

    def step(self) -> None:
        """Recognize the next window."""
        number, recording = self.queue.next()
        try:
            segments = self._next_segments(number, recording)
        except Abandoned:
            return
        except Exception as error:  # noqa: BLE001 - it affects only this recording
            self.fail(number, error, "This recording could not be recognized")
            return
        for segment in segments:
            self.channel.send(SegmentRecognized(number, segment))
        if not recording.windows:
            self.end(number, Finished(number))

    def take(self, message: Transcribe) -> None:
        """Add a recording after its owner's others."""
        self.queue.add(message.owner, message.number, _Recording(message, message.language))

    def _next_segments(self, number: int, recording: _Recording) -> list[Segment]:
        """Return the segments of the next window; none if there is no speech. Raises Abandoned, and what the model raises."""

        def check() -> None:
            if self.is_gone(number):
                raise Abandoned

        rate = self._model.rate
        if recording.samples is None:
            recording.samples = mono(recording.request.recording, rate)
            recording.windows.extend(self._model.windows(recording.samples))
        if not recording.windows:
            return []
        start, end = recording.windows.popleft()
        segments = self._model.transcribe(recording.samples[start:end], recording.language, check)
        recording.language = next((one.language for one in segments), recording.language)
        return [
            msgspec.structs.replace(
                one, start=round(start / rate + one.start, 2), end=round(start / rate + one.end, 2)
            )
            for one in segments
        ]


class _Recording(msgspec.Struct):
    """A recording, its windows that are not recognized yet, and its language, once that is known."""

    request: Transcribe
    language: str | None
    samples: Samples | None = None
    windows: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
