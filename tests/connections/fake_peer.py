"""What is at the other end of a connection, for what only pushes frames at it and shuts it."""

from __future__ import annotations

from connections.protocol.errors import Close
from connections.protocol.frames import Frame


class Peer:
    """A connection that keeps what it is given."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.closes: list[Close] = []
        self.waiting_bytes = 0

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)

    def shut(self, close: Close) -> None:
        self.closes.append(close)
