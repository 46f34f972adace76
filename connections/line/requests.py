"""The pending requests of one connection, and their limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from connections.wire.audio import AudioStop
from connections.wire.frames import Cancel
from connections.wire.table import overtakes
from sessions.errors import Overloaded

MAX_REQUESTS = 64
MAX_CANCELS = 64
"""Pending cancels: they wait for another replica, or for a rollback. They and `audio.stop` have a limit of their own: they must be heard."""

Slow = Coroutine[None, None, None]


class Chained(Coroutine[None, None, None]):
    """Work that awaits other work, which may be closed before it began: then that other work is closed, too."""

    def __init__(self, work: Slow, *awaited: Slow) -> None:
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


class UnderWay:
    """Knows the tasks, but does not own them."""

    def __init__(self) -> None:
        self._requests: set[asyncio.Task[None]] = set()
        self._cancels: set[asyncio.Task[None]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no request is pending."""
        return not (self._requests or self._cancels)

    def check_room(self, frame: object) -> None:
        """Raise Overloaded if too many requests are pending. Cancels and pings always pass: they act at once as far as they can."""
        if len(self._requests) >= MAX_REQUESTS and not overtakes(frame):
            raise Overloaded("Too many requests at once.")

    def begin(
        self, frame: object, slow: Slow, finish: Callable[[Slow], Slow], tasks: asyncio.TaskGroup
    ) -> None:
        """Run the waiting part of a request. Raises Overloaded if too many cancels wait."""
        kin = self._cancels if isinstance(frame, Cancel | AudioStop) else self._requests
        if kin is self._cancels and len(kin) >= MAX_CANCELS:
            slow.close()
            raise Overloaded(
                "Too many cancels at once: this one took effect as far as it could at once, and no further."
            )
        kin.add(request := tasks.create_task(finish(slow)))
        request.add_done_callback(partial(_finished, slow, kin))


def _finished(slow: Slow, kin: set[asyncio.Task[None]], request: asyncio.Task[None]) -> None:
    kin.discard(request)
    slow.close()  # the connection may have ended before the task began
