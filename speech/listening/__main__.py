"""The listening process: `python -m speech.listening DESCRIPTOR [GRAMMAR]`. Ends with the gateway."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue

import msgspec

from speech.listening.messages import (
    Clear,
    Commit,
    FromListener,
    Leave,
    Listen,
    Ready,
    Sound,
    Taken,
    Told,
    ToListener,
)
from speech.listening.stream import SpeechStream, Understand
from speech.process.messages import LENGTH, pack
from speech.process.turns import Turns
from speech.recognition.decoding import Listener


class Work:
    """Listens to all; what is to be understood is done a piece at a time, owners by turns."""

    def __init__(self, line: socket.socket, understand: Understand) -> None:
        """Take the process' end of the socket."""
        self._line = line
        self._understand = understand
        self._inbox: SimpleQueue[ToListener] = SimpleQueue()
        self._streams: dict[int, tuple[str, SpeechStream]] = {}
        self._turns: Turns[SpeechStream] = Turns()

    def run(self) -> None:
        """Work until the gateway is gone."""
        threading.Thread(target=self._read, daemon=True).start()
        self._send(Ready())
        while True:
            while not self._turns or not self._inbox.empty():
                self._take(self._inbox.get())
            self._step()

    def _take(self, message: ToListener) -> None:
        match message:
            case Listen(number, owner, listening):
                self._streams[number] = owner, SpeechStream(listening, self._understand)
            case Leave(number):
                self._streams.pop(number, None)
                self._turns.remove(number)
            case _ if message.number in self._streams:
                self._hear(message, *self._streams[message.number])

    def _hear(self, message: Sound | Commit | Clear, owner: str, stream: SpeechStream) -> None:
        match message:
            case Sound(number, sound):
                stream.feed(sound)
                self._send(Taken(number, len(sound)))
            case Commit():
                stream.commit()
            case Clear():
                stream.clear()
        if stream.has_work:
            self._turns.add(owner, message.number, stream)

    def _step(self) -> None:
        number, stream = self._turns.next()
        if stream.has_work:
            self._send(Told(number, stream.step()))
        if not stream.has_work:
            self._turns.remove(number)

    def _send(self, message: FromListener) -> None:
        self._line.sendall(pack(message))

    def _read(self) -> None:
        """Read on beside the work, so that the gateway never waits, and end the process with it."""
        decoder: msgspec.msgpack.Decoder[ToListener] = msgspec.msgpack.Decoder(ToListener)
        with self._line.makefile("rb") as stream:
            while len(head := stream.read(LENGTH.size)) == LENGTH.size:
                self._inbox.put(decoder.decode(stream.read(LENGTH.unpack(head)[0])))
        os._exit(0)


def main() -> None:
    """Load the model, and work."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the gateway says when to end
    descriptor, *grammar = sys.argv[1:]
    line = socket.socket(fileno=int(descriptor))
    try:
        Work(line, Listener(grammar[0] if grammar else None).text_of).run()
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(0)


if __name__ == "__main__":
    main()
