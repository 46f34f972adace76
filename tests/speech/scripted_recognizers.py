"""A recognizer's process whose model does what a recording's first sample says, or that refuses: for tests of what is around models.

`python -m tests.speech.scripted_recognizers recognition OPTIONS DESCRIPTOR`
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from speech.process import Channel, Refused
from speech.recognition import Ready, Segment, ToRecognizer
from speech.recognition_worker import CancelCheck, RecognizerWorker, Wave


class Outcome(IntEnum):
    """What becomes of a recording."""

    ENDED = 1
    ENDLESS = 2
    NO_NUMBERS = 3
    FAILS = 4


@dataclass
class Job:
    outcome: Outcome
    is_over: bool = False


class Scripted:
    """Tells for each recording how many were heard with it."""

    rate = 16_000
    facts = Ready(languages={})

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> Job:
        outcome = Outcome(round(float(wave[0]) * 32_768))
        return Job(outcome)

    def transcribe(self, jobs: Sequence[Job], watch: CancelCheck) -> list[list[Segment] | None]:
        if any(job.outcome is Outcome.FAILS for job in jobs):
            raise RuntimeError
        while any(
            job.outcome is Outcome.ENDLESS and not is_gone for job, is_gone in zip(jobs, watch(), strict=True)
        ):
            pass
        for job in jobs:
            job.is_over = job.outcome is not Outcome.ENDLESS
        reported = [Segment(0, 1, str(len(jobs)), ())]
        return [None if job.outcome is Outcome.NO_NUMBERS else reported for job in jobs]


if __name__ == "__main__":
    line = Channel(int(sys.argv[-1]), ToRecognizer)
    if "refuse" in sys.argv[2]:
        line.send(Refused("There is no such model."))
    else:
        RecognizerWorker(line, Scripted()).run()
