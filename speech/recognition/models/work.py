"""Recognizes windows of several recordings together, for a model's process. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech.process.line import Line
from speech.process.work import Work
from speech.recognition.messages import Finished, Heard, Segment, Transcribe
from speech.recognition.models.hearing import Hearing
from speech.sound.samples import FULL_SCALE, mono

MOST_TOGETHER = 8
"""Recordings with a window in one batch. Later ones wait for the end of these windows."""
_FAILED = "This recording could not be recognised"


@dataclass(slots=True)
class Asked:
    """A recording; its features are made at its first turn."""

    asked: Transcribe
    job: Any = None

    @property
    def kind(self) -> bool:
        """The value that recordings of a batch share: times of words are computed for all or for none."""
        return self.asked.wants_words


class RecognizerWork(Work[Asked]):
    """Recognizes windows of several recordings together, and checks between steps which were cancelled."""

    def __init__(self, line: Line, model: Hearing[Any]) -> None:
        super().__init__(line, model.facts)
        self._model = model

    def step(self) -> None:
        """Recognize a window of each recording whose turn it is."""
        chosen = self.turns.several(MOST_TOGETHER, lambda one, other: one.kind == other.kind)
        jobs = {number: job for number, asked in chosen if (job := self._job(number, asked)) is not None}
        for number, segments in self._heard(jobs).items():
            if not self.is_gone(number):
                self._tell(number, jobs[number], segments)

    def take(self, message: Transcribe) -> None:
        """Add a recording after its owner's others."""
        self.turns.add(message.owner, message.number, Asked(message))

    def _job(self, number: int, asked: Asked) -> Any | None:
        """Return the model's job for a recording; None if the model can't use it."""
        if asked.job is None:
            told = asked.asked
            try:
                wave = mono(told.recording, self._model.rate).astype(np.float32) / np.float32(FULL_SCALE)
                asked.job = self._model.begin(wave, language=told.language, wants_words=told.wants_words)
            except Exception as error:  # noqa: BLE001 - it affects only this recording
                self.fail(number, error, _FAILED)
        return asked.job

    def _heard(self, jobs: Mapping[int, Any]) -> dict[int, list[Segment] | None]:
        """Return the next window's segments of each. If they fail together, each is recognized alone."""
        if not jobs:
            return {}
        try:
            told = self._model.hear(list(jobs.values()), lambda: self.watch(jobs))
            return dict(zip(jobs, told, strict=True))
        except Exception as error:  # noqa: BLE001 - as above
            if len(jobs) == 1:
                self.fail(next(iter(jobs)), error, _FAILED)
                return {}
        return {number: told for one in jobs for number, told in self._heard({one: jobs[one]}).items()}

    def _tell(self, number: int, job: Any, segments: Sequence[Segment] | None) -> None:
        if segments is None:
            self.fail(number, FloatingPointError(), _FAILED)
            return
        for segment in segments:
            self.line.send(Heard(number, segment))
        if job.is_over:
            self.end(number, Finished(number))
