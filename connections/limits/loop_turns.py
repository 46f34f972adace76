"""Frames are taken in small numbers in each turn of the event loop, in turn between addresses.

Hundreds of sockets may have a frame each in the same moment. Were all of them answered before anybody else's text or pong
is sent, everybody would wait for that, however little each socket may send.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

FRAMES = 8
"""In one turn of the event loop: some two milliseconds' work."""


class LoopTurns:
    """One for all sockets of a server; round robin between groups, first come, first served within one."""

    def __init__(self, frames: int = FRAMES) -> None:
        self._frames = self._left = frames
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._is_armed = False

    def take_nowait(self) -> bool:
        """Take one of this turn's frames, if nobody waits and one is left."""
        if not self._left or self._waiting:
            return False
        self._left -= 1
        self._arm()
        return True

    async def take(self, group: str) -> None:
        """Wait for one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(group, deque()).append(turn)
        self._arm()
        await turn

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the loop's next turn."""
        self._is_armed = False
        self._left = self._frames
        while self._left and self._waiting:
            group, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[group] = turns
            if not turn.done():  # its socket may have gone
                turn.set_result(None)
                self._left -= 1
        if self._waiting:
            self._arm()
