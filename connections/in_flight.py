"""The pending requests of one connection, and their limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from connections.protocol.audio import AudioStop
from connections.protocol.frame_kinds import bypasses_request_limit
from connections.protocol.frames import Cancel
from sessions.errors import Overloaded

MAX_REQUESTS = 64
MAX_CANCELS = 64
"""Pending cancels: they wait for another replica, or for a rollback. They and `audio.stop` have a limit of their own: they must be heard."""

PendingWork = Coroutine[None, None, None]


class ChainedWork(Coroutine[None, None, None]):
    """Work that awaits other work, which may be closed before it began: then that other work is closed, too."""

    def __init__(self, work: PendingWork, *awaited: PendingWork) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[None, None, None]:
        return self._work.__await__()

    def send(self, value: None, /) -> None:
        """Continue as a coroutine does."""
        return self._work.send(value)

    def throw(self, *error: Any) -> None:
        """Raise within it, as a coroutine does."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Close it, and the awaited work if that has not begun."""
        for work in (self._work, *self._awaited):
            work.close()


class InFlightRequests:
    """Knows the tasks, but does not own them."""

    def __init__(self) -> None:
        self._requests: set[asyncio.Task[None]] = set()
        self._cancels: set[asyncio.Task[None]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no request is pending."""
        return not (self._requests or self._cancels)

    def check_limit(self, frame: object) -> None:
        """Raise Overloaded if too many requests are pending. Cancels and pings always pass: they act at once as far as they can."""
        if len(self._requests) >= MAX_REQUESTS and not bypasses_request_limit(frame):
            raise Overloaded("Too many requests at once.")

    def begin(
        self,
        frame: object,
        slow: PendingWork,
        finish: Callable[[PendingWork], PendingWork],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Run the waiting part of a request. Raises Overloaded if too many cancels wait."""
        group = self._cancels if isinstance(frame, Cancel | AudioStop) else self._requests
        if group is self._cancels and len(group) >= MAX_CANCELS:
            slow.close()
            raise Overloaded(
                "Too many cancels at once: this one took effect as far as it could at once, and no further."
            )
        group.add(request := tasks.create_task(finish(slow)))
        request.add_done_callback(partial(_finished, slow, group))


def _finished(slow: PendingWork, group: set[asyncio.Task[None]], request: asyncio.Task[None]) -> None:
    group.discard(request)
    slow.close()  # the connection may have ended before the task began
