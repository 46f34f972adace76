"""A listening process whose words are how long the sound was: `python -m tests.speech.scripted_recognizer_process DESCRIPTOR`.

It fails where a sample is as low as none in a voice is.
"""

from __future__ import annotations

import sys

from speech.listening.messages import ToListener
from speech.listening.stream import Utterance
from speech.listening.worker import ListenWorker
from speech.process.worker import Channel
from speech.recognition.messages import Ready
from speech.sound.samples import Samples

LOWEST = -32_768


def length(samples: Samples, _language: str | None) -> Utterance:
    """How many samples there are."""
    if samples.min(initial=0) == LOWEST:
        raise RuntimeError
    return Utterance(str(len(samples)))


if __name__ == "__main__":
    ListenWorker(Channel(int(sys.argv[1]), ToListener), Ready(languages={}), length).run()
