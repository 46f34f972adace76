"""PocketSphinx's process: `python -m speech.recognition DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from speech.process.line import Line
from speech.process.messages import Working
from speech.process.work import Work
from speech.recognition.decoding import Listener
from speech.recognition.messages import ENGLISH, Finished, Heard, Segment, ToRecognizer, Transcribe


class SegmentWork(Work[Iterator[Segment | None]]):
    """Recognizes recordings, a segment at a time, and reads new requests between segments."""

    def __init__(self, line: Line, listener: Listener) -> None:
        super().__init__(line, ENGLISH)
        self._listener = listener

    def step(self) -> None:
        """Recognize the next segment of the next recording."""
        self.line.send(Working())
        number, segments = self.turns.next()
        try:
            segment = next(segments)
        except StopIteration:
            self.end(number, Finished(number))
        except Exception as error:  # noqa: BLE001 - it affects only this recording
            self.fail(number, error, "This recording could not be recognised")
        else:
            if segment is not None:
                self.line.send(Heard(number, segment))

    def take(self, message: Transcribe) -> None:
        """Add a recording after its owner's others."""
        self.turns.add(message.owner, message.number, self._listener.segments(message.recording))


def main() -> None:
    """Load the model, and work."""
    descriptor, *grammar = sys.argv[1:]
    line = Line(int(descriptor), ToRecognizer)
    SegmentWork(line, Listener(grammar[0] if grammar else None)).run()


if __name__ == "__main__":
    main()
