"""What a server's log says of trouble: a line a defect."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec


class _Line(msgspec.Struct):
    level: str = ""
    event: str = ""
    exception: str = ""


_FOR_PEOPLE = re.compile(rb"Midstream is ready|.*\(\d+%\)$|engine: INFO: ")
"""What a server prints while it loads and once it is ready, and what its engine notes, beside its log."""

_decode = msgspec.json.Decoder(_Line).decode


def unhandled(log: Path) -> list[str]:
    """Return the errors in a log of JSON lines: what was logged as one, and what was not logged but printed."""
    return [found for line in log.read_bytes().splitlines() if (found := _error(line))]


def _error(line: bytes) -> str:
    if not line.strip() or _FOR_PEOPLE.match(line):
        return ""
    try:
        logged = _decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return line.decode(errors="replace")
    if logged.level in ("error", "critical") or logged.exception:
        return f"{logged.event} {logged.exception.strip().rpartition(chr(10))[2]}"
    return ""
