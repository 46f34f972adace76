"""PocketSphinx's listening process: `python -m speech.listening DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import sys

from speech.listening.messages import ToListener
from speech.listening.stream import Utterance
from speech.listening.worker import ListenWorker
from speech.process.worker import Channel
from speech.recognition.messages import ENGLISH
from speech.recognition.pocketsphinx_decoder import PocketSphinxDecoder


def main() -> None:
    """Load the model, and work."""
    descriptor, *grammar = sys.argv[1:]
    channel = Channel(int(descriptor), ToListener)
    listener = PocketSphinxDecoder(grammar[0] if grammar else None)
    ListenWorker(channel, ENGLISH, lambda samples, _: Utterance(*listener.recognize(samples))).run()


if __name__ == "__main__":
    main()
