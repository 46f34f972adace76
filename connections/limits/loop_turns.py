"""Spreads the work of many sockets over turns of the event loop, a few pieces in each.

Addresses take turns, and those without recent work come first: a person who sends now and then does not wait behind twenty
peers that never stop. Otherwise everybody's text and pongs would wait for all of the work, however little each socket may send.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial

AT_ONCE = 4
"""Pieces in one turn of the event loop: a millisecond's work of answered frames."""
LATELY = 128
"""Recent pieces whose groups are remembered."""

_Waiting = OrderedDict[str, deque[Callable[[], None]]]


class LoopTurns:
    """One for all sockets of a server: round robin between groups, first come first served within one."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._first: _Waiting = OrderedDict()
        self._waiting: _Waiting = OrderedDict()
        self._lately: deque[str] = deque()
        self._had: Counter[str] = Counter()
        self._is_armed = False

    def take_nowait(self, group: str) -> bool:
        """Take a piece of this turn, if nobody waits and one is left."""
        if not self._left or self._first or self._waiting:
            return False
        self._count(group)
        self._arm()
        return True

    async def take(self, group: str) -> None:
        """Wait for a piece."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue(group, partial(_begin, turn))
        await turn

    def queue(self, group: str, callback: Callable[[], None]) -> None:
        """Call back in a later turn of the loop."""
        callbacks = self._first.get(group) or self._waiting.get(group)
        if callbacks is None:
            where = self._waiting if group in self._had else self._first
            callbacks = where[group] = deque()
        callbacks.append(callback)
        self._arm()

    def _count(self, group: str) -> None:
        self._left -= 1
        self._lately.append(group)
        self._had[group] += 1
        if len(self._lately) > LATELY:
            forgotten = self._lately.popleft()
            self._had[forgotten] -= 1
            if not self._had[forgotten]:
                del self._had[forgotten]
                if (callbacks := self._waiting.pop(forgotten, None)) is not None:
                    self._first[forgotten] = callbacks  # so that a stream of newcomers keeps nobody waiting

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the loop's next turn. A callback may queue the next one."""
        self._is_armed = False
        self._left = self._at_once
        while self._left and (waiting := self._first or self._waiting):
            group, callbacks = waiting.popitem(last=False)
            callback = callbacks.popleft()
            if callbacks:
                self._waiting[group] = callbacks
            self._count(group)
            callback()
        if self._first or self._waiting:
            self._arm()


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # its socket may be closed
        turn.set_result(None)
