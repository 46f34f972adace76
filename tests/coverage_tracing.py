"""Which of the processes that tests start count for coverage. Tracing doubles the time of a start: few of them do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_CONFIG = "COVERAGE_PROCESS_CONFIG"
_kept: dict[str, str] = {}


def disable_coverage() -> None:
    """From here on processes are started untraced, but inside of `coverage_enabled`."""
    if (config := os.environ.pop(_CONFIG, None)) is not None:
        _kept[_CONFIG] = config


@contextmanager
def coverage_enabled() -> Iterator[None]:
    """What is started inside the block counts, where coverage is measured at all."""
    before = os.environ.get(_CONFIG)
    os.environ.update(_kept)
    try:
        yield
    finally:
        os.environ.pop(_CONFIG, None)
        if before is not None:
            os.environ[_CONFIG] = before
