"""Recognizes windows of several recordings together, for a model's process, and the interface of its models.

A model takes several recordings at once, a window of each at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from speech.process.worker import Channel, Worker
from speech.recognition.messages import Finished, Ready, Segment, SegmentRecognized, Transcribe
from speech.sound.samples import FULL_SCALE, mono

Wave = npt.NDArray[np.float32]
"""Samples from -1 to 1."""

CancelCheck = Callable[[], Sequence[bool]]
"""Called before every step; returns which recordings nobody waits for any more."""

MOST_TOGETHER = 8
"""Recordings with a window in one batch. Later ones wait for the end of these windows."""

_FAILED = "This recording could not be recognised"


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
class RecordingWork:
    """A recording; its features are made at its first turn."""

    request: Transcribe
    job: Any = None

    @property
    def kind(self) -> bool:
        """The value that recordings of a batch share: times of words are computed for all or for none."""
        return self.request.wants_words


class RecognizerWorker(Worker[RecordingWork]):
    """Recognizes windows of several recordings together, and checks between steps which were cancelled."""

    def __init__(self, channel: Channel, model: RecognitionModel[Any]) -> None:
        super().__init__(channel, model.facts)
        self._model = model

    def step(self) -> None:
        """Recognize a window of each recording whose turn it is."""
        chosen = self.queue.several(MOST_TOGETHER, lambda one, other: one.kind == other.kind)
        jobs = {number: job for number, request in chosen if (job := self._job(number, request)) is not None}
        for number, segments in self._transcribe(jobs).items():
            if not self.is_gone(number):
                self._send_segments(number, jobs[number], segments)

    def take(self, message: Transcribe) -> None:
        """Add a recording after its owner's others."""
        self.queue.add(message.owner, message.number, RecordingWork(message))

    def _job(self, number: int, request: RecordingWork) -> Any | None:
        """Return the model's job for a recording; None if the model can't use it."""
        if request.job is None:
            result = request.request
            try:
                wave = mono(result.recording, self._model.rate).astype(np.float32) / np.float32(FULL_SCALE)
                request.job = self._model.begin(
                    wave, language=result.language, wants_words=result.wants_words
                )
            except Exception as error:  # noqa: BLE001 - it affects only this recording
                self.fail(number, error, _FAILED)
        return request.job

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
