"""Asks the user about the calls of one reply, one after another, and sends the decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from midstream.client import Client
from midstream.errors import Refused
from midstream.reply import Reply
from midstream.terminal.call_prompts import CallPrompt, Decision, prompt_for

AGAIN_S = 1.0
"""Pause, at least, before asking again about a call whose decision the server could not take."""
QUIET_S = 0.3
"""Seconds without text before a question is asked: text may follow a call."""

Read = Callable[[CallPrompt], Awaitable[str | None]]
"""Returns the line that was typed for a question; None if nobody can be asked, or the user left."""


class CallPrompter:
    """The questions to one reply's user. `fail` shows a line about a failure."""

    def __init__(self, client: Client, reply: Reply, read: Read, fail: Callable[[str], None]) -> None:
        self._client = client
        self._reply = reply
        self._read = read
        self._fail = fail
        self._decided: set[tuple[str, str]] = set()  # calls, and the hashes of what was decided here
        self._open: CallPrompt | None = None
        self._from = 0.0  # by the monotonic clock: nothing is asked before
        self.line: asyncio.Future[str | None] | None = None
        """The line that is being typed."""

    @property
    def is_open(self) -> bool:
        """Whether a question is open."""
        return self._open is not None

    @property
    def is_stale(self) -> bool:
        """Whether somebody else answered the open question."""
        return self._open is not None and not _is_still_open(self._open)

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
        several = (prompt_for(call) for call in self._reply.calls)
        call_prompt = next(
            (one for one in several if one is not None and _key(one) not in self._decided), None
        )
        if call_prompt is None or self._open is None or _key(call_prompt) != _key(self._open):
            await self.stop()
            self._open = call_prompt
        if self._open is None or self.line is not None or self.pause_s is not None:
            return
        before()
        self.line = asyncio.ensure_future(self._read(self._open))

    async def stop(self) -> None:
        """Withdraw the question for now."""
        line, self.line, self._open = self.line, None, None
        if line is not None and not line.done():
            line.cancel()
            await asyncio.wait((line,))

    async def take(self) -> None:
        """Take the typed line; ask again after an invalid one. A user who left allows nothing. Raises Disconnected."""
        line, self.line, open_prompt = self.line, None, self._open
        if line is None or open_prompt is None or not _is_still_open(open_prompt):
            self._open = None
            return
        typed = line.result()
        answer = Decision("deny") if typed is None else open_prompt.answer(typed)
        if answer is not None:
            self._open = None
            await self._decide(open_prompt, answer)

    async def _decide(self, open_prompt: CallPrompt, answer: Decision) -> None:
        """Send a decision; ask again if the server can't take it now, or it does not fit. Raises Disconnected.

        If somebody else decided first, the reply shows that.
        """
        self._decided.add(_key(open_prompt))
        conversation_id = self._reply.accepted["conversation_id"]
        try:
            await self._client.tool_decision(
                open_prompt.call.call_id,
                answer.decision,
                args_sha256=open_prompt.sha256,
                args=answer.args,
                conversation_id=conversation_id,
            )
        except Refused as refused:
            if refused.code != "conflict":
                self._fail(str(refused))
            if refused.retryable or refused.code == "bad_params":
                self._decided.discard(_key(open_prompt))
                self._from = time.monotonic() + max(AGAIN_S, (refused.retry_after_ms or 0) / 1000)


def _key(call_prompt: CallPrompt) -> tuple[str, str]:
    return call_prompt.call.call_id, call_prompt.sha256


def _is_still_open(call_prompt: CallPrompt) -> bool:
    """Return whether the call still asks this."""
    now = prompt_for(call_prompt.call)
    return now is not None and now.sha256 == call_prompt.sha256
