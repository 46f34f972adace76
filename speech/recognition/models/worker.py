"""Recognizes windows of several recordings together, for a model's process. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech.process.channel import Channel
from speech.process.worker import Worker
from speech.recognition.messages import Finished, Segment, SegmentRecognized, Transcribe
from speech.recognition.models.interface import RecognitionModel
from speech.sound.samples import FULL_SCALE, mono

MOST_TOGETHER = 8
"""Recordings with a window in one batch. Later ones wait for the end of these windows."""
_FAILED = "This recording could not be recognised"


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
