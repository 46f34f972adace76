"""PocketSphinx's listening process: `python -m speech.listening DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import sys

from speech.listening.messages import ToListener
from speech.listening.stream import Utterance
from speech.listening.work import ListenWork
from speech.process.line import Line
from speech.recognition.decoding import Listener
from speech.recognition.messages import ENGLISH


def main() -> None:
    """Load the model, and work."""
    descriptor, *grammar = sys.argv[1:]
    line = Line(int(descriptor), ToListener)
    listener = Listener(grammar[0] if grammar else None)
    ListenWork(line, ENGLISH, lambda samples, _: Utterance(*listener.heard(samples))).run()


if __name__ == "__main__":
    main()
