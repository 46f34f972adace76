"""Recognizes pieces of recordings in a recognizer's process, several together, and the interface of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from speech.process import Channel, Worker
from speech.recognition import (
    Finished,
    Ready,
    Segment,
    SegmentRecognized,
    Transcribe,
)
from speech.samples import FULL_SCALE, mono

Wave = npt.NDArray[np.float32]
"""Samples from -1 to 1."""

CancelCheck = Callable[[], Sequence[bool]]
"""Called before every step; returns which recordings nobody waits for any more."""

MOST_TOGETHER = 8

_FAILED = "This recording could not be recognised"


class RecognizerWorker(Worker["_Recording"]):
    """Recognizes windows of several recordings together, and checks between steps which were cancelled."""

    def __init__(
        self, channel: Channel, model: RecognitionModel[Any], *, most_together: int = MOST_TOGETHER
    ) -> None:
        """`most_together`: recordings with a window in one batch. Later ones wait for the end of these windows."""
        super().__init__(channel, model.facts)
        self._model = model
        self._most_together = most_together

    def step(self) -> None:
        """Recognize a window of each recording whose turn it is."""
        chosen = self.queue.several(
            self._most_together,
            lambda one, other: one.request.wants_words == other.request.wants_words,
        )
        jobs = {number: job for number, work in chosen if (job := self._job(number, work)) is not None}
        for number in [number for number, job in jobs.items() if job.is_over]:  # there is no speech in it
            self._send_segments(number, jobs.pop(number), ())
        for number, segments in self._transcribe(jobs).items():
            if not self.is_gone(number):
                self._send_segments(number, jobs[number], segments)

    def take(self, message: Transcribe) -> None:
        """Add a recording after its owner's others."""
        self.queue.add(message.owner, message.number, _Recording(message))

    def _job(self, number: int, work: _Recording) -> Any | None:
        """Return the model's job for a recording; None if the model can't use it."""
        if work.job is None:
            request = work.request
            try:
                wave = mono(request.recording, self._model.rate).astype(np.float32) / np.float32(FULL_SCALE)
                work.job = self._model.begin(wave, language=request.language, wants_words=request.wants_words)
            except Exception as error:  # noqa: BLE001 - it affects only this recording
                self.fail(number, error, _FAILED)
        return work.job

    def _transcribe(self, jobs: Mapping[int, Any]) -> dict[int, list[Segment] | None]:
        """Return the next window's segments of each. If they fail together, each is recognized alone."""
        if not jobs:
            return {}
        try:
            result = self._model.transcribe(list(jobs.values()), lambda: self.watch(jobs))
            return dict(zip(jobs, result, strict=True))
        except Exception as error:  # noqa: BLE001 - as above
            if len(jobs) == 1:
                self.fail(next(iter(jobs)), error, _FAILED)
                return {}
        return {
            number: result for one in jobs for number, result in self._transcribe({one: jobs[one]}).items()
        }

    def _send_segments(self, number: int, job: Any, segments: Sequence[Segment] | None) -> None:
        if segments is None:
            self.fail(number, FloatingPointError(), _FAILED)
            return
        for segment in segments:
            self.channel.send(SegmentRecognized(number, segment))
        if job.is_over:
            self.end(number, Finished(number))


@dataclass(slots=True)
class _Recording:
    """A recording; its features are made at its first turn."""

    request: Transcribe
    job: Any = None


class Job(Protocol):
    """A recording that is being recognized."""

    @property
    def is_over(self) -> bool:
        """Whether all of it was recognized."""
        ...


J = TypeVar("J", bound=Job)


class RecognitionModel(Protocol[J]):
    """A model. Results come per job, in order; None: the model computed invalid numbers."""

    rate: int

    @property
    def facts(self) -> Ready:
        """Its facts for the gateway."""
        ...

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> J:
        """Return a recording to recognize."""
        ...

    def transcribe(self, jobs: Sequence[J], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each; windows that the watch reports may be cut short.

        All jobs want times of words, or none. If this raises, no job has advanced.
        """
        ...


@dataclass(slots=True)
class WindowedJob:
    """A recording, and its windows that are not recognized yet."""

    wave: Wave
    left: list[tuple[int, int]]

    @property
    def is_over(self) -> bool:
        """Whether all of it was recognized."""
        return not self.left
