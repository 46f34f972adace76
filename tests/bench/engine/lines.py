"""The lines of JSON that a contender's process answers with. Knows no contender."""

from __future__ import annotations

import os
from typing import BinaryIO

import msgspec

from tests.bench.engine.records import Line


def own_output() -> BinaryIO:
    """Keep standard output for answers: whatever libraries print goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def put(answers: BinaryIO, line: Line) -> None:
    """Write a line, now."""
    answers.write(msgspec.json.encode(line) + b"\n")
    answers.flush()
