"""Incoming server-sent events: their bytes are counted, and their `retry` times limited. Pure.

WHATWG HTML, section 9.2.6. Lines are passed on as they are; the caller limits the length of an event.
"""

from __future__ import annotations

import re

SOONEST_MS, LATEST_MS = 500, 10_000
"""Limits of the `retry` time that a server may set."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_RETRY = re.compile(rb"retry: ?(\d{1,18})\Z")


class SseLineReader:
    """Takes bytes in any pieces; returns whole lines, without comments."""

    def __init__(self) -> None:
        self.largest = 0
        """Bytes of the largest event so far, even an incomplete one."""
        self._line = bytearray()
        self._event = 0
        self._after_return = False

    def rest(self) -> bytes:
        """Return the rest of a stream that ended within a line."""
        return bytes(self._line)

    def feed(self, received: bytes) -> tuple[bytes, int]:
        """Return the lines that became complete, and how many of them end an event."""
        if self._after_return and received:
            received = received.removeprefix(b"\n")
            self._after_return = False
        self._after_return |= received.endswith(b"\r")
        *ended, rest = _LINE_END.split(received)
        lines = []
        for part in ended:
            lines.append(bytes(self._line + part))
            self._line.clear()
        self._line += rest
        passed = [_reasonable(line) for line in lines if not line.startswith(b":")]
        for line in passed:
            self._event = self._event + len(line) if line else 0
            self.largest = max(self.largest, self._event)
        self.largest = max(self.largest, self._event + len(self._line))
        return b"".join(line + b"\n" for line in passed), lines.count(b"")


def _reasonable(line: bytes) -> bytes:
    """Return a `retry` line with its time brought within the limits."""
    if not line.startswith(b"retry"):
        return line
    found = _RETRY.match(line)
    requested_ms = int(found[1]) if found is not None else LATEST_MS
    return b"retry: %d" % min(max(requested_ms, SOONEST_MS), LATEST_MS)
