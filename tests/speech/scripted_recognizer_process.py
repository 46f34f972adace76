"""A listening process whose words are how long the sound was: `python -m tests.speech.scripted_recognizer_process listening OPTIONS DESCRIPTOR`.

It fails where a sample is as low as none in a voice is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from speech.listening_worker import ListenWorker
from speech.process import Channel
from speech.recognition import Ready, ToListener, Utterance
from speech.samples import Samples

LOWEST = -32_768


def length(samples: Samples, _language: str | None, _check: Callable[[], None]) -> Utterance:
    """How many samples there are."""
    if samples.min(initial=0) == LOWEST:
        raise RuntimeError
    return Utterance(str(len(samples)))


if __name__ == "__main__":
    ListenWorker(Channel(int(sys.argv[-1]), ToListener), Ready(languages={}), length).run()
