"""A voice's process whose model does what a clause says: `python -m tests.speech.scripted_voice_process voice OPTIONS DESCRIPTOR`."""

from __future__ import annotations

import sys
import threading

from speech.model_voice import ToVoice, VoiceReady, VoiceWorker
from speech.process import Channel


class Scripted:
    """Makes a sample for each letter."""

    facts = VoiceReady(names=("default",), rate=16_000)

    def speak(self, clause: str, *, voice: str, speed: float) -> bytes:
        if "endless" in clause:
            threading.Event().wait()
        if "hours" in clause:
            raise OverflowError
        if "defect" in clause:
            raise RuntimeError
        return bytes(2 * len(clause))


if __name__ == "__main__":
    scripted = Scripted()
    VoiceWorker(Channel(int(sys.argv[-1]), ToVoice), scripted.facts, scripted.speak).run()
