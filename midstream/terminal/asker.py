"""Asks about the calls of one reply, one after the other, and says to the server what was decided."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from midstream.client import Client
from midstream.errors import Refused
from midstream.reply import Reply
from midstream.terminal.asking import Asking, Decided, asked_of

AGAIN_S = 1.0
"""After so long, at least, it is asked again about a call of which the server could not take a decision."""
QUIET_S = 0.3
"""Text may come behind a call that asks. It is asked once so long nothing came."""

Read = Callable[[Asking], Awaitable[str | None]]
"""Gives the line that was typed to what is asked; None where nobody can be asked, or has left."""


class Asker:
    """What is asked of one reply's user. `fail` shows a line of something that went wrong."""

    def __init__(self, client: Client, reply: Reply, read: Read, fail: Callable[[str], None]) -> None:
        self._client = client
        self._reply = reply
        self._read = read
        self._fail = fail
        self._decided: set[tuple[str, str]] = set()  # calls, and what of them was decided here
        self._asked: Asking | None = None
        self._from = 0.0  # on the monotonic clock: before, nothing is asked
        self.line: asyncio.Future[str | None] | None = None
        """What is being typed."""

    @property
    def asks(self) -> bool:
        """Whether something is asked at this moment."""
        return self._asked is not None

    @property
    def is_stale(self) -> bool:
        """Whether somebody else has answered what is asked."""
        return self._asked is not None and not _still(self._asked)

    @property
    def pause_s(self) -> float | None:
        """Seconds until something may be asked; None where it may now."""
        pause_s = self._from - time.monotonic()
        return pause_s if pause_s > 0 else None

    def wait_for_quiet(self) -> None:
        """Text has come, and more may."""
        self._from = max(self._from, time.monotonic() + QUIET_S)

    async def ask(self, before: Callable[[], None]) -> None:
        """Asks about the next call that needs it; calls `before` where it does."""
        several = (asked_of(call) for call in self._reply.calls)
        asking = next((one for one in several if one is not None and _key(one) not in self._decided), None)
        if asking is None or self._asked is None or _key(asking) != _key(self._asked):
            await self.stop()
            self._asked = asking
        if self._asked is None or self.line is not None or self.pause_s is not None:
            return
        before()
        self.line = asyncio.ensure_future(self._read(self._asked))

    async def stop(self) -> None:
        """Asks no more for now."""
        line, self.line, self._asked = self.line, None, None
        if line is not None and not line.done():
            line.cancel()
            await asyncio.wait((line,))

    async def take(self) -> None:
        """Takes the line that was typed; what is no answer is asked again. Whoever left allows nothing. Raises Disconnected."""
        line, self.line, asked = self.line, None, self._asked
        if line is None or asked is None or not _still(asked):
            self._asked = None
            return
        typed = line.result()
        decided = Decided("deny") if typed is None else asked.answer(typed)
        if decided is not None:
            self._asked = None
            await self._decide(asked, decided)

    async def _decide(self, asked: Asking, decided: Decided) -> None:
        """Says it; where the server can't take it now, or it does not fit, it is asked again. Raises Disconnected.

        Where somebody else was first, what they decided is told by the reply.
        """
        self._decided.add(_key(asked))
        place = self._reply.accepted["conversation_id"]
        try:
            await self._client.tool_decision(
                asked.call.call_id,
                decided.decision,
                args_sha256=asked.sha256,
                args=decided.args,
                conversation_id=place,
            )
        except Refused as refused:
            if refused.code != "conflict":
                self._fail(str(refused))
            if refused.retryable or refused.code == "bad_params":
                self._decided.discard(_key(asked))
                self._from = time.monotonic() + max(AGAIN_S, (refused.retry_after_ms or 0) / 1000)


def _key(asking: Asking) -> tuple[str, str]:
    return asking.call.call_id, asking.sha256


def _still(asking: Asking) -> bool:
    """Whether the call asks this still."""
    now = asked_of(asking.call)
    return now is not None and now.sha256 == asking.sha256
