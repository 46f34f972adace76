"""The lines of JSON in which a contender's process answers. Knows no contender."""

from __future__ import annotations

import os
from typing import BinaryIO

import msgspec

from tests.bench.engine.records import Line


def own_output() -> BinaryIO:
    """Keep standard output for answers: from now on libraries print to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def put(answers: BinaryIO, line: Line) -> None:
    """Write a line immediately."""
    answers.write(msgspec.json.encode(line) + b"\n")
    answers.flush()
