"""The contenders, and the arguments of their processes. Knows no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Name(StrEnum):
    """A contender's name, in the files and on the command line, in the order of their turns."""

    OURS = "midstream"
    BATCHING = "batching"
    THREADS = "threads"


TITLES = {
    Name.OURS: "Midstream",
    Name.BATCHING: "continuous batching",
    Name.THREADS: "a thread per request",
}


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process: its contender and its model, a folder. `kv_bytes` bounds our engine's keys and values.
    `most_at_once`: streams that our engine has slots for.
    """

    contender: Name
    folder: str
    dtype: str
    vocabulary: int
    kv_bytes: int | None = None
    device: str = "cpu"
    most_at_once: int = 32
