"""The errors in a server's log, one line each."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import msgspec


class _Line(msgspec.Struct):
    level: str = ""
    event: str = ""
    exception: str = ""


_FOR_PEOPLE = re.compile(rb"Midstream is ready|.*\(\d+%\)$|engine: INFO: ")
"""Lines that a server prints while it loads and once it is ready, and its engine's notes; they are not log lines."""

_decode = msgspec.json.Decoder(_Line).decode


def unhandled(log: Path) -> list[str]:
    """Return the errors in a log of JSON lines: entries of level error, and anything printed outside the log.

    Consecutive printed lines are one error, represented by its last line.
    """
    lines = (line for line in log.read_bytes().splitlines() if not _FOR_PEOPLE.match(line))
    groups = ((is_logged, list(group)) for is_logged, group in groupby(lines, _is_logged))
    found = ([*map(_error, group)] if is_logged else _printed(group) for is_logged, group in groups)
    return [error for errors in found for error in errors if error]


def _is_logged(line: bytes) -> bool:
    try:
        _decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    return True


def _error(line: bytes) -> str:
    logged = _decode(line)
    if logged.level in ("error", "critical") or logged.exception:
        return f"{logged.event} {logged.exception.strip().rpartition(chr(10))[2]}"
    return ""


def _printed(lines: list[bytes]) -> list[str]:
    """Return the last line of a traceback; those of an exception group have bars in front."""
    words = [line.decode(errors="replace").strip(" |+-^~") for line in lines]
    return [word for word in words if word][-1:]
