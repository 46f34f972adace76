"""A listening process whose words are how long the sound was: `python -m tests.speech.scripted_listener DESCRIPTOR`.

It fails where a sample is as low as none in a voice is.
"""

from __future__ import annotations

import sys

from speech.listening.messages import ToListener
from speech.listening.stream import Utterance
from speech.listening.work import ListenWork
from speech.process.line import Line
from speech.recognition.messages import Ready
from speech.sound.samples import Samples

LOWEST = -32_768


def length(samples: Samples, _language: str | None) -> Utterance:
    """How many samples there are."""
    if samples.min(initial=0) == LOWEST:
        raise RuntimeError
    return Utterance(str(len(samples)))


if __name__ == "__main__":
    ListenWork(Line(int(sys.argv[1]), ToListener), Ready(languages={}), length).run()
