"""A voice's process whose model does what a clause says: `python -m tests.speech.scripted_voice DESCRIPTOR`."""

from __future__ import annotations

import sys

from speech.contract import SpokenClause
from speech.process.line import Line
from speech.voice.messages import ToVoice, VoiceReady
from speech.voice.models.asking import TooLong, Watch
from speech.voice.models.work import VoiceWork


class Scripted:
    """Makes a sample for each letter."""

    facts = VoiceReady(names=("default",), rate=16_000)

    def speak(self, clause: str, *, voice: str, speed: float, watch: Watch) -> SpokenClause:
        while "endless" in clause:
            watch()
        if "hours" in clause:
            raise TooLong
        if "defect" in clause:
            raise RuntimeError
        return SpokenClause(16_000, bytes(2 * len(clause)), None)


if __name__ == "__main__":
    VoiceWork(Line(int(sys.argv[1]), ToVoice), Scripted()).run()
