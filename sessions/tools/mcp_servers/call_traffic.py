"""A call as the wire sees it: which requests and answers belong to it, and what failed on the way.

A session has calls of many users at once. The work for each is done in tasks that carry the call in their context.
The library passes contexts on with its messages, so a server's question reaches the call whose answer it came in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from sessions.tools.server_tool import Elicit, ToolFailed, ToolLost

GRACE_S = 2.0
"""How long a server has to end its answer to a call that is over."""
ANSWERS_TIMES = 4
"""How many times the bytes of one message all answers to one call may have."""


class CallTraffic:
    """The state of a call on the wire. `most_bytes`: of all that the server sends for it."""

    def __init__(self, elicit: Elicit, *, most_bytes: int) -> None:
        self.elicit = elicit
        self.over = False
        self.fault: asyncio.Future[ToolFailed] = asyncio.get_running_loop().create_future()
        """Set once it is useless to wait for the answer."""
        self._left = most_bytes
        self._cut_off: float | None = None
        self._reading: set[asyncio.Timeout] = set()

    def fail(self, words: str, *, ran: bool) -> None:
        """End the call. `ran`: the server may have done its work. Only the first failure counts."""
        if not self.fault.done():
            self.fault.set_result(ToolLost(words) if ran else ToolFailed(words))

    def spend(self, size: int) -> None:
        """Count received bytes of the call."""
        self._left -= size
        if self._left < 0:
            self.fail("The tool's answer has more bytes than are read.", ran=False)

    def end(self) -> None:
        """Note that nobody waits any more: what is still being read is soon cut off."""
        self.over = True
        self._cut_off = asyncio.get_running_loop().time() + GRACE_S
        for limit in self._reading:
            limit.reschedule(self._cut_off)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Raise TimeoutError from the block once the call has been over for a while."""
        async with asyncio.timeout_at(self._cut_off) as limit:
            self._reading.add(limit)
            try:
                yield
            finally:
                self._reading.discard(limit)


CURRENT: ContextVar[CallTraffic | None] = ContextVar("current call of a tool", default=None)
"""The call that a task works for; None in tasks of the session as a whole."""
