"""A recognizer's process whose model does what a recording's first sample says, or that refuses: for tests of what is around models.

`python -m tests.speech.scripted_recognizers recognition OPTIONS DESCRIPTOR`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum

from speech.process import Channel, Refused
from speech.recognition import Ready, Segment, ToRecognizer, Utterance
from speech.recognition_worker import RecognizerWorker
from speech.samples import Samples


class Outcome(IntEnum):
    """What becomes of a recording."""

    ENDED = 1
    ENDLESS = 2
    FAILS = 3
    SILENCE = 4


class Scripted:
    """Hears a word in each of two windows."""

    rate = 16_000
    facts = Ready(languages={})

    def windows(self, samples: Samples) -> list[tuple[int, int]]:
        return [] if samples[0] == Outcome.SILENCE else [(0, 800), (800, 1600)]

    def transcribe(self, samples: Samples, language: str | None, check: Callable[[], None]) -> list[Segment]:
        if samples[0] == Outcome.FAILS:
            raise RuntimeError
        while samples[0] == Outcome.ENDLESS:
            check()
        return [Segment(0.01, 0.02, f"word in {language}", "de")]

    def recognize(self, samples: Samples, language: str | None, check: Callable[[], None]) -> Utterance:
        raise NotImplementedError


if __name__ == "__main__":
    line = Channel(int(sys.argv[-1]), ToRecognizer)
    if "refuse" in sys.argv[2]:
        line.send(Refused("There is no such model."))
    else:
        RecognizerWorker(line, Scripted()).run()
