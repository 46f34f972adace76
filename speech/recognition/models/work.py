"""Hears windows of several recordings at a time, for a model's process. Knows no model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech.process.line import Line
from speech.process.messages import Cancel, Failed, Working
from speech.process.turns import Turns
from speech.recognition.messages import Finished, Heard, Segment, ToRecognizer, Transcribe
from speech.recognition.models.hearing import Hearing
from speech.sound.samples import mono

MOST_TOGETHER = 8
"""Recordings of which a window is heard at once. Who comes meanwhile waits for the end of these windows."""
FULL_SCALE = 32_768


@dataclass(slots=True)
class Asked:
    """A recording; its features are made when its turn comes first."""

    asked: Transcribe
    job: Any = None

    @property
    def kind(self) -> bool:
        """What those that are heard together have in common: times of words are computed for all or for none."""
        return self.asked.wants_words


class Work:
    """Hears windows of several recordings at a time, and looks between two steps for who has left."""

    def __init__(self, line: Line, model: Hearing[Any]) -> None:
        self._line = line
        self._model = model
        self._turns: Turns[Asked] = Turns()
        self._gone: set[int] = set()

    def run(self) -> None:
        """Work until the gateway is gone."""
        self._line.send(self._model.facts)
        while True:
            if not self._turns:
                self._take(self._line.wait())
            self._catch_up()
            if self._turns:
                self._step()

    def _step(self) -> None:
        """Hear a window of each whose turn it is."""
        chosen = self._turns.several(MOST_TOGETHER, lambda one, other: one.kind == other.kind)
        self._gone.clear()
        jobs = {number: job for number, asked in chosen if (job := self._job(number, asked)) is not None}
        for number, segments in self._heard(jobs).items():
            if number not in self._gone:
                self._tell(number, jobs[number], segments)

    def _job(self, number: int, asked: Asked) -> Any | None:
        """Return what the model makes of a recording; None where it can make nothing of it."""
        if asked.job is None:
            told = asked.asked
            try:
                wave = mono(told.recording, self._model.rate).astype(np.float32) / np.float32(FULL_SCALE)
                asked.job = self._model.begin(wave, language=told.language, wants_words=told.wants_words)
            except Exception as error:  # noqa: BLE001 - it is of this recording alone; its message may quote the sound
                self._fail(number, error)
        return asked.job

    def _heard(self, jobs: Mapping[int, Any]) -> dict[int, list[Segment] | None]:
        """Return what is in the next window of each. Where they can't be heard together, each is heard alone."""
        if not jobs:
            return {}
        try:
            told = self._model.hear(list(jobs.values()), lambda: self._watched(jobs))
            return dict(zip(jobs, told, strict=True))
        except Exception as error:  # noqa: BLE001 - as above
            if len(jobs) == 1:
                self._fail(next(iter(jobs)), error)
                return {}
        return {number: told for one in jobs for number, told in self._heard({one: jobs[one]}).items()}

    def _tell(self, number: int, job: Any, segments: Sequence[Segment] | None) -> None:
        if segments is None:
            self._fail(number, FloatingPointError())
            return
        for segment in segments:
            self._line.send(Heard(number, segment))
        if job.is_over:
            self._end(number, Finished(number))

    def _fail(self, number: int, error: Exception) -> None:
        print(f"a recording could not be recognised: {type(error).__name__}", file=sys.stderr)  # noqa: T201
        self._end(number, Failed(number, "This recording could not be recognised."))

    def _end(self, number: int, told: Finished | Failed) -> None:
        self._turns.remove(number)
        self._line.send(told)

    def _watched(self, jobs: Mapping[int, Any]) -> list[bool]:
        self._line.send(Working())
        self._catch_up()
        return [number in self._gone for number in jobs]

    def _catch_up(self) -> None:
        while (message := self._line.poll()) is not None:
            self._take(message)

    def _take(self, message: ToRecognizer) -> None:
        match message:
            case Transcribe(number, owner):
                self._turns.add(owner, number, Asked(message))
            case Cancel(number):
                self._gone.add(number)
                self._turns.remove(number)
