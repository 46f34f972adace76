"""Merges the progress reports of a call: however many there are, only the newest is passed on, a few times a second."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from threading import Lock

from sessions.tools.server_tool import Progress

INTERVAL_S = 0.25
"""Seconds between two reports."""
MESSAGE_CHARS = 200


def plain(progress: Progress) -> Progress | None:
    """Return a report as it may be shown; None if it has no valid number."""
    if not math.isfinite(progress.done):
        return None
    total = progress.total if progress.total is not None and math.isfinite(progress.total) else None
    message = progress.message.encode("utf-8", "replace").decode()[:MESSAGE_CHARS]
    return Progress(done=progress.done, total=total, message=message)


class ProgressFeed:
    """Takes reports from any thread, and passes the newest on in the event loop. Create it in the loop."""

    def __init__(self, on_progress: Callable[[Progress], None], *, interval_s: float = INTERVAL_S) -> None:
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._newest: Progress | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False
        self._closed = False

    def report(self, progress: Progress) -> None:
        """Report how far the call is. Returns at once."""
        with self._lock:
            self._newest = progress
            if self._waiting or self._closed:
                return
            self._waiting = True
            self._loop.call_soon_threadsafe(self._arm)

    def close(self) -> None:
        """Ignore all later reports. Call it in the loop."""
        with self._lock:
            self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if not self._closed:
            self._timer = self._loop.call_at(max(self._due, self._loop.time()), self._flush)

    def _flush(self) -> None:
        with self._lock:
            newest, self._waiting = self._newest, False
        self._due = self._loop.time() + self._interval_s
        if newest is not None and (shown := plain(newest)) is not None:
            self._on_progress(shown)
