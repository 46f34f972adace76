"""Counts the calls of server tools for metrics: by outcome, not by name, since servers choose names freely."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from sessions.tools.server_tool import ToolLost


class Outcome(StrEnum):
    """How a call ended."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    CANCELLED = "cancelled"


class ToolStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Calls since the start of this process. `seconds`: of ended calls, with their waits for a place."""

    started: int
    running: int
    ended: dict[Outcome, int]
    seconds: dict[Outcome, float]


class ToolCounters:
    """Counts calls. `now`: a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = 0
        self._ended = dict.fromkeys(Outcome, 0)
        self._seconds = dict.fromkeys(Outcome, 0.0)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count the block as one call."""
        self._started += 1
        begun, outcome = self._now(), Outcome.FAILED
        try:
            yield
            outcome = Outcome.DONE
        except ToolLost:
            outcome = Outcome.LOST
            raise
        except asyncio.CancelledError:
            outcome = Outcome.CANCELLED
            raise
        finally:
            self._ended[outcome] += 1
            self._seconds[outcome] += self._now() - begun

    def statistics(self) -> ToolStatistics:
        """Return the current counts."""
        running = self._started - sum(self._ended.values())
        return ToolStatistics(
            started=self._started, running=running, ended={**self._ended}, seconds={**self._seconds}
        )
