"""The recognizer's process: `python -m speech.recognition DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import msgspec

from speech.recognition.decoding import Listener
from speech.recognition.messages import (
    LENGTH,
    Cancel,
    Failed,
    Finished,
    FromRecognizer,
    Heard,
    Ready,
    Segment,
    ToRecognizer,
    Transcribe,
    Working,
    pack,
)
from speech.recognition.turns import Turns


class Work:
    """Recognises what is asked, a segment at a time, and looks between two of them for what is new."""

    def __init__(self, line: socket.socket, listener: Listener) -> None:
        """Take the process' end of the socket."""
        self._line = line
        self._listener = listener
        self._inbox: SimpleQueue[ToRecognizer] = SimpleQueue()
        self._turns: Turns[Iterator[Segment | None]] = Turns()

    def run(self) -> None:
        """Work until the gateway is gone."""
        threading.Thread(target=self._read, daemon=True).start()
        self._send(Ready())
        while True:
            while not self._turns or not self._inbox.empty():
                self._take(self._inbox.get())
            self._step()

    def _step(self) -> None:
        self._send(Working())
        number, segments = self._turns.next()
        try:
            segment = next(segments)
        except StopIteration:
            self._turns.remove(number)
            self._send(Finished(number))
            return
        except Exception as error:  # noqa: BLE001 - it is of this recording alone; its message may quote the sound
            print(f"a recording could not be recognised: {type(error).__name__}", file=sys.stderr)  # noqa: T201
            self._turns.remove(number)
            self._send(Failed(number))
            return
        if segment is not None:
            self._send(Heard(number, segment))

    def _take(self, message: ToRecognizer) -> None:
        match message:
            case Transcribe(number, owner, recording):
                self._turns.add(owner, number, self._listener.segments(recording))
            case Cancel(number):
                self._turns.remove(number)

    def _send(self, message: FromRecognizer) -> None:
        self._line.sendall(pack(message))

    def _read(self) -> None:
        """Read on beside the work, so that the gateway never waits, and end the process with it."""
        decoder: msgspec.msgpack.Decoder[ToRecognizer] = msgspec.msgpack.Decoder(ToRecognizer)
        with self._line.makefile("rb") as stream:
            while len(head := stream.read(LENGTH.size)) == LENGTH.size:
                body = stream.read(LENGTH.unpack(head)[0])
                self._inbox.put(decoder.decode(body))
        os._exit(0)


def main() -> None:
    """Load the model, and work."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the gateway says when to end
    descriptor, *grammar = sys.argv[1:]
    line = socket.socket(fileno=int(descriptor))
    try:
        Work(line, Listener(grammar[0] if grammar else None)).run()
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)


if __name__ == "__main__":
    main()
