"""PocketSphinx's process: `python -m speech.recognition DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from speech.process.messages import Working
from speech.process.worker import Channel, Worker
from speech.recognition.messages import (
    ENGLISH,
    Finished,
    Segment,
    SegmentRecognized,
    ToRecognizer,
    Transcribe,
)
from speech.recognition.pocketsphinx_decoder import PocketSphinxDecoder


class SegmentWorker(Worker[Iterator[Segment | None]]):
    """Recognizes recordings, a segment at a time, and reads new requests between segments."""

    def __init__(self, channel: Channel, listener: PocketSphinxDecoder) -> None:
        super().__init__(channel, ENGLISH)
        self._listener = listener

    def step(self) -> None:
        """Recognize the next segment of the next recording."""
        self.channel.send(Working())
        number, segments = self.queue.next()
        try:
            segment = next(segments)
        except StopIteration:
            self.end(number, Finished(number))
        except Exception as error:  # noqa: BLE001 - it affects only this recording
            self.fail(number, error, "This recording could not be recognised")
        else:
            if segment is not None:
                self.channel.send(SegmentRecognized(number, segment))

    def take(self, message: Transcribe) -> None:
        """Add a recording after its owner's others."""
        self.queue.add(message.owner, message.number, self._listener.segments(message.recording))


def main() -> None:
    """Load the model, and work."""
    descriptor, *grammar = sys.argv[1:]
    channel = Channel(int(descriptor), ToRecognizer)
    SegmentWorker(channel, PocketSphinxDecoder(grammar[0] if grammar else None)).run()


if __name__ == "__main__":
    main()
