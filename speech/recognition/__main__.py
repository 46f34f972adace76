"""PocketSphinx's process: `python -m speech.recognition DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from speech.process.line import Line
from speech.process.messages import Cancel, Failed, Working
from speech.process.turns import Turns
from speech.recognition.decoding import Listener
from speech.recognition.messages import Finished, Heard, Ready, Segment, ToRecognizer, Transcribe


class Work:
    """Recognises what is asked, a segment at a time, and looks between two of them for what is new."""

    def __init__(self, line: Line, listener: Listener) -> None:
        self._line = line
        self._listener = listener
        self._turns: Turns[Iterator[Segment | None]] = Turns()

    def run(self) -> None:
        """Work until the gateway is gone."""
        self._line.send(Ready(languages={"en": "english"}, language="en"))
        while True:
            if not self._turns:
                self._take(self._line.wait())
            while (message := self._line.poll()) is not None:
                self._take(message)
            if self._turns:
                self._step()

    def _step(self) -> None:
        self._line.send(Working())
        number, segments = self._turns.next()
        try:
            segment = next(segments)
        except StopIteration:
            self._turns.remove(number)
            self._line.send(Finished(number))
            return
        except Exception as error:  # noqa: BLE001 - it is of this recording alone; its message may quote the sound
            print(f"a recording could not be recognised: {type(error).__name__}", file=sys.stderr)  # noqa: T201
            self._turns.remove(number)
            self._line.send(Failed(number, "This recording could not be recognised."))
            return
        if segment is not None:
            self._line.send(Heard(number, segment))

    def _take(self, message: ToRecognizer) -> None:
        match message:
            case Transcribe(number, owner, recording):
                self._turns.add(owner, number, self._listener.segments(recording))
            case Cancel(number):
                self._turns.remove(number)


def main() -> None:
    """Load the model, and work."""
    descriptor, *grammar = sys.argv[1:]
    line = Line(int(descriptor), ToRecognizer)
    Work(line, Listener(grammar[0] if grammar else None)).run()


if __name__ == "__main__":
    main()
