"""Asks the user about the calls of one reply, one after another, and sends the decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from midstream.client import Client
from midstream.errors import Refused
from midstream.reply import Reply
from midstream.terminal.asking import Asking, Decided, asked_of

AGAIN_S = 1.0
"""Pause, at least, before asking again about a call whose decision the server could not take."""
QUIET_S = 0.3
"""Seconds without text before a question is asked: text may follow a call."""

Read = Callable[[Asking], Awaitable[str | None]]
"""Returns the line that was typed for a question; None if nobody can be asked, or the user left."""


class Asker:
    """The questions to one reply's user. `fail` shows a line about a failure."""

    def __init__(self, client: Client, reply: Reply, read: Read, fail: Callable[[str], None]) -> None:
        self._client = client
        self._reply = reply
        self._read = read
        self._fail = fail
        self._decided: set[tuple[str, str]] = set()  # calls, and the hashes of what was decided here
        self._asked: Asking | None = None
        self._from = 0.0  # by the monotonic clock: nothing is asked before
        self.line: asyncio.Future[str | None] | None = None
        """The line that is being typed."""

    @property
    def asks(self) -> bool:
        """Whether a question is open."""
        return self._asked is not None

    @property
    def is_stale(self) -> bool:
        """Whether somebody else answered the open question."""
        return self._asked is not None and not _still(self._asked)

    @property
    def pause_s(self) -> float | None:
        """Seconds until something may be asked; None if it may be now."""
        pause_s = self._from - time.monotonic()
        return pause_s if pause_s > 0 else None

    def wait_for_quiet(self) -> None:
        """Note that text came, and more may."""
        self._from = max(self._from, time.monotonic() + QUIET_S)

    async def ask(self, before: Callable[[], None]) -> None:
        """Ask about the next call that needs it, after calling `before`."""
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
        """Withdraw the question for now."""
        line, self.line, self._asked = self.line, None, None
        if line is not None and not line.done():
            line.cancel()
            await asyncio.wait((line,))

    async def take(self) -> None:
        """Take the typed line; ask again after an invalid one. A user who left allows nothing. Raises Disconnected."""
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
        """Send a decision; ask again if the server can't take it now, or it does not fit. Raises Disconnected.

        If somebody else decided first, the reply shows that.
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
    """Return whether the call still asks this."""
    now = asked_of(asking.call)
    return now is not None and now.sha256 == asking.sha256
