"""Reads server-sent events from bytes in any pieces (WHATWG HTML, 9.2.6). Pure: knows no sockets, and no event's meaning."""

from __future__ import annotations

import re

import msgspec

MOST_BYTES = 1 << 20

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event has more bytes than the reader takes."""


class ServerSentEvent(msgspec.Struct, frozen=True):
    """One event: its lines of data, joined by newlines, and its kind, which is empty if it has none."""

    data: str
    kind: str = ""


class EventReader:
    """Reads one stream. Comments, ids and retry times are ignored. Bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: the most bytes of one event."""
        self._most_bytes = most_bytes
        self._line = bytearray()
        self._lines: list[bytes] = []
        self._kind = b""
        self._size = 0
        self._after_return = False
        self._first = True

    def feed(self, received: bytes) -> list[ServerSentEvent]:
        """Take the next bytes; return the events that became complete. Raises EventTooLong."""
        if received and self._after_return:
            received = received.removeprefix(b"\n")
            self._after_return = False
        if not received:
            return []
        self._after_return = received.endswith(b"\r")
        *ended, rest = _LINE_END.split(received)
        events: list[ServerSentEvent] = []
        for part in ended:
            self._extend_line(part)
            events += self._end_line()
        self._extend_line(rest)
        return events

    def end(self) -> list[ServerSentEvent]:
        """Return the last event, if the stream ended without an empty line behind it, as some servers do."""
        return [*self._end_line(), *self._end_event()]

    def _extend_line(self, part: bytes) -> None:
        self._line += part
        self._size += len(part)
        if self._size > self._most_bytes:
            raise EventTooLong(f"A server-sent event has more than {self._most_bytes} bytes.")

    def _end_line(self) -> list[ServerSentEvent]:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._lines.append(value)
            case b"event":
                self._kind = value
            case _:
                self._size -= len(line)  # nothing of it is kept, so a server may send comments without end
        return []

    def _end_event(self) -> list[ServerSentEvent]:
        lines, kind = self._lines, self._kind
        self._lines, self._kind, self._size = [], b"", 0
        if not lines:
            return []
        return [ServerSentEvent(b"\n".join(lines).decode(errors="replace"), kind.decode(errors="replace"))]
