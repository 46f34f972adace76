"""Frames as server-sent events (HTML Standard, section 9.2): what a socket would send, and ids to come back by. Pure."""

from __future__ import annotations

from connections.events.request import event_id
from connections.protocol import codec
from connections.protocol.frames import Frame
from sessions.conversation.history_page import HistoryPage
from sessions.events import Accepted, Deleted, Gap, Journalled, Resumed, Snapshot


def begin(*, retry_ms: int) -> bytes:
    """Return the first line: the reconnection time."""
    return b"retry: %d\n\n" % retry_ms


class EventStreamEncoder:
    """One reader's events, in order. They have no names: each is a `message`, whose data is the frame as on a socket.

    `needs_history`: a gap was sent, and no history since; `is_over`: the conversation is gone.
    """

    def __init__(self) -> None:
        self.needs_history = False
        self.is_over = False
        self._epoch = ""

    def encode(self, frame: Frame) -> bytes:
        """Return the event of a frame. While the history is missing, events have no ids: reconnecting then repeats the gap."""
        match frame:
            case Accepted() | Resumed() | Snapshot():
                self._epoch = frame.epoch
            case Gap() | HistoryPage():
                self._epoch = frame.epoch
                self.needs_history = isinstance(frame, Gap)
            case Deleted():
                self.is_over = True
        return self._id(frame) + b"data: " + codec.encode(frame) + b"\n\n"

    def _id(self, frame: Frame) -> bytes:
        match frame:
            case _ if isinstance(frame, Journalled | Snapshot | HistoryPage) and not self.needs_history:
                return f"id: {event_id(self._epoch, frame.seq)}\n".encode()
        return b""
