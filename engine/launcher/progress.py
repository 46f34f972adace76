"""Reads vLLM's lines: how far its start is, how severe a line is, and why it ended. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

MOST_CHARS = 2000
"""The longest line that is passed on; the rest of it is dropped."""
KEPT_LINES = 400
"""How many of its last lines are searched for the reason of its end."""

_RECORD = re.compile(
    r"^(?:\([^()]*\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?P<text>.*)$"
)
_PLACE = re.compile(r"^\[[\w.]+:\d+\] ?")
_PREFIX = re.compile(r"^\([^()]*\) ")
_CAUSE = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b: *\S|^[\w .-]+: error: ")
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|See root cause above|WorkerProc initialization failed"
)
_INVALID = re.compile(r"validation errors? for")
_NOISE = re.compile(r"Route: /|^[█▄▀▐▌ ]*$|[█▄▀]")

# In the order of a start: a pattern of lines, the stage in words, and the shares at which it begins and ends.
_STAGES = (
    (re.compile(r"Fetching \d+ files: +(\d+)%"), "fetching the model", 0.05, 0.15),
    (re.compile(r"Resolved architecture"), "reading the configuration", 0.05, 0.05),
    (re.compile(r"Initializing a V\d LLM engine"), "starting vLLM's engine", 0.15, 0.15),
    (re.compile(r"Starting to load model"), "reading the weights", 0.2, 0.2),
    (re.compile(r"checkpoint shards: +(\d+)%"), "reading the weights", 0.2, 0.7),
    (re.compile(r"Warming up model|torch\.compile|Dynamo bytecode|Compiling a graph"), "compiling", 0.7, 0.7),
    (re.compile(r"Capturing CUDA graph.*?(\d+)%"), "recording steps", 0.8, 0.95),
    (re.compile(r"init engine|Starting vLLM server"), "opening its door", 0.95, 0.95),
)


class LogLine(NamedTuple):
    """One line of vLLM. `level` is None if it belongs to no log record, such as a progress bar or a bare traceback.

    `place`: where in vLLM's code the record was written, and when. All lines of one record have the same.
    """

    level: int | None
    text: str
    place: str = ""

    @property
    def is_noise(self) -> bool:
        """Whether it tells nothing, like vLLM's banner and its list of routes."""
        return _NOISE.search(self.text) is not None


def line_of(raw: str) -> LogLine:
    """Return a line without the marks that vLLM puts before it."""
    found = _RECORD.match(raw)
    if found is None:
        return LogLine(None, _PREFIX.sub("", raw).rstrip())
    text = _PLACE.sub("", found["text"]).rstrip()
    return LogLine(
        logging.getLevelNamesMapping()[found["level"]], text, raw[: len(raw.rstrip()) - len(text)].rstrip()
    )


def stage_of(line: str) -> tuple[str, float] | None:
    """Return the stage of the start that a line tells, and the share that is done; None if it tells none."""
    for pattern, stage, begin, end in _STAGES:
        if found := pattern.search(line):
            done = int(found[1]) / 100 if found.groups() else 0.0
            return stage, begin + (end - begin) * done
    return None


def cause_of(lines: Sequence[str]) -> str | None:
    """Return the reason of vLLM's end: the last error that is no mere consequence of another; None if there is none."""
    plain = [line_of(line).text for line in lines]
    causes = [
        number for number, text in enumerate(plain) if _CAUSE.match(text) and not _CONSEQUENCE.search(text)
    ]
    if not causes:
        return None
    last = causes[-1]
    reason = plain[last]
    if _INVALID.search(reason) and last + 1 < len(plain):  # pydantic's reason is on the next line
        reason = plain[last + 1].strip().partition(" [type=")[0]
    return reason[:MOST_CHARS]


class LineSplitter:
    """Cuts a stream of bytes into lines. A progress bar ends its lines with a carriage return."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the complete lines that are not empty. A line is also complete at `MOST_CHARS` bytes."""
        *whole, rest = re.split(rb"[\r\n]+", self._rest + data)
        if len(rest) > MOST_CHARS:
            whole, rest = [*whole, rest], b""
        self._rest = rest
        return [line.decode(errors="replace")[:MOST_CHARS] for line in whole if line.strip()]
