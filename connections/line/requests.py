"""What the requests of one connection still wait for, and how many may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from connections.wire.frames import Cancel
from connections.wire.table import overtakes
from sessions.errors import Overloaded

MAX_REQUESTS = 64
MAX_CANCELS = 64
"""That wait: for another replica, or to take an exchange back. They have room of their own, since a cancel must be heard."""

Slow = Coroutine[None, None, None]


class UnderWay:
    """Knows the tasks, which are not its own."""

    def __init__(self) -> None:
        self._requests: set[asyncio.Task[None]] = set()
        self._cancels: set[asyncio.Task[None]] = set()

    def check_room(self, frame: object) -> None:
        """Raises Overloaded where a request can't be handed on: too many wait. A cancel can: it does at once what it can, and so can a ping."""
        if len(self._requests) >= MAX_REQUESTS and not overtakes(frame):
            raise Overloaded("Too many requests at once.")

    def begin(
        self, frame: object, slow: Slow, finish: Callable[[Slow], Slow], tasks: asyncio.TaskGroup
    ) -> None:
        """Runs what a request waits for. Raises Overloaded where too many cancels wait."""
        kin = self._cancels if isinstance(frame, Cancel) else self._requests
        if kin is self._cancels and len(kin) >= MAX_CANCELS:
            slow.close()
            raise Overloaded("Too many cancels at once: what this one would have waited for is not done.")
        kin.add(request := tasks.create_task(finish(slow)))
        request.add_done_callback(partial(_finished, slow, kin))


def _finished(slow: Slow, kin: set[asyncio.Task[None]], request: asyncio.Task[None]) -> None:
    kin.discard(request)
    slow.close()  # the connection may have ended before it began
