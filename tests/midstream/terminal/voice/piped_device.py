"""A sound device whose microphone hears what is written into a pipe, and silence else; in real time.

What the loudspeaker plays stands in a file. The device goes where a file says so.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import monotonic

from midstream.terminal.voice.device import FillOutput, OnInput, OnLost

RATE = 16_000
PIECE_S = 0.02
_PIECE_BYTES = 2 * int(RATE * PIECE_S)


class PipedDevice:
    """In a folder with the pipe `said`."""

    input_rate = output_rate = RATE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipe = os.open(folder / "said", os.O_RDONLY | os.O_NONBLOCK)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_input: OnInput, fill: FillOutput, on_lost: OnLost) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, args=(on_input, fill, on_lost), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, on_input: OnInput, fill: FillOutput, on_lost: OnLost) -> None:
        due = monotonic()
        with (self._folder / "played").open("wb", buffering=0) as played:
            while not self._closed.wait(max(0.0, due - monotonic())):
                due += PIECE_S
                on_input(self._piece())
                played.write(fill(_PIECE_BYTES, 0.0))
                if (self._folder / "gone").exists():
                    on_lost("The microphone is gone.")
                    return

    def _piece(self) -> bytes:
        try:
            samples = os.read(self._pipe, _PIECE_BYTES)
        except BlockingIOError:
            samples = b""
        return samples.ljust(_PIECE_BYTES, b"\0")
