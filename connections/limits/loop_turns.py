"""What many sockets ask for in the same moment is done in small numbers in each turn of the event loop.

Addresses have it in turn. Were all of it done before anybody else's text or pong is sent, everybody would wait for that,
however little each socket may send.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

AT_ONCE = 4
"""In one turn of the event loop: of frames that are answered, a millisecond's work."""


class LoopTurns:
    """One for all sockets of a server; round robin between groups, first come, first served within one."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._is_armed = False

    def take_nowait(self) -> bool:
        """Take one of this turn's, if nobody waits and one is left."""
        if not self._left or self._waiting:
            return False
        self._left -= 1
        self._arm()
        return True

    async def take(self, group: str) -> None:
        """Wait for one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue(group, partial(_begin, turn))
        await turn

    def queue(self, group: str, callback: Callable[[], None]) -> None:
        """Call back in a later turn of the loop."""
        self._waiting.setdefault(group, deque()).append(callback)
        self._arm()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the loop's next turn. A callback may queue the next one."""
        self._is_armed = False
        self._left = self._at_once
        while self._left and self._waiting:
            group, callbacks = self._waiting.popitem(last=False)
            callback = callbacks.popleft()
            if callbacks:
                self._waiting[group] = callbacks
            self._left -= 1
            callback()
        if self._waiting:
            self._arm()


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # its socket may have gone
        turn.set_result(None)
