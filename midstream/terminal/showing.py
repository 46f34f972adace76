"""Shows a reply on the screen as it comes, and asks about the calls that need it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

from midstream.calls import Call
from midstream.client import Client
from midstream.errors import Refused
from midstream.reply import Event, Reasoning, Reply, Status
from midstream.terminal.asking import Asking, Decided, asked_of
from midstream.terminal.face import Page
from midstream.terminal.words import call_line, kept_up_to, thought_for, words_for

AGAIN_S = 1.0
"""After so long, at least, it is asked again about a call of which the server could not take a decision."""
QUIET_S = 0.3
"""Text may come behind a call that asks. It is asked once so long nothing came."""
FRAME_S = 0.04
"""While more text is there than can be shown, it is shown so often."""


class Ground(Protocol):
    """What a reply is shown on."""

    def page(self, before: str) -> Page:
        """Where the text goes."""

    def note(self, line: str) -> None:
        """A line that is no part of the text."""

    def fail(self, line: str) -> None:
        """A line of something that went wrong."""

    def wait(self, line: str) -> None:
        """A line that goes when something else comes; an empty one is none."""

    async def answer(self, asking: Asking) -> str | None:
        """The line that was typed to what is asked; None where nobody can be asked, or has left."""


class Showing:
    """One reply on the screen, to its end. `before` is the text that it goes on with."""

    def __init__(self, client: Client, reply: Reply, ground: Ground, *, before: str = "") -> None:
        self._client = client
        self._reply = reply
        self._ground = ground
        self._page = ground.page(before)
        self._shown_at = 0.0
        self._is_waiting = False
        self._holds = False
        self._thinks_since: float | None = None
        self._told: dict[str, str] = {}  # of each call, the last line
        self._decided: set[tuple[str, str]] = set()  # calls, and what of them was decided here
        self._asking: asyncio.Task[str | None] | None = None
        self._asked: Asking | None = None
        self._asks_from = 0.0  # on the monotonic clock: before, nothing is asked

    async def run(self) -> None:
        """Shows what comes, and asks. Raises Disconnected, ClientError."""
        events = self._reply.events()
        coming = asyncio.create_task(_next(events))
        try:
            self.catch_up()
            for call in self._reply.calls:
                self._show_call(call)
            while True:
                await self._ask()
                await self._news(coming)
                if self._asking is not None and self._asking.done():
                    await self._answer(self._asking.result())
                elif coming.done():
                    if (event := coming.result()) is None:
                        return
                    coming = asyncio.create_task(_next(events))
                    if not isinstance(event, Call) or (
                        self._asked is not None and not self._still(self._asked)
                    ):
                        await self._stop_asking()  # text goes on, or somebody else was first
                    self._show(event)
        finally:
            coming.cancel()
            await self._stop_asking()
            self._end_thought()
            self._end_wait()
            if self._page.end(self._reply.text):
                self._ground.note(kept_up_to(self._reply.text))

    def hold(self) -> None:
        """Shows all that was read of the text, and nothing behind it: the reply is being stopped."""
        self.catch_up()
        self._holds = True

    def go_on(self) -> None:
        """The reply was not stopped."""
        self._holds = False
        self.catch_up()

    def catch_up(self) -> None:
        """Shows all that was read of the text, unless it is being stopped."""
        if self._reply.text and not self._holds:
            self._end_wait()
            self._page.show(self._reply.text)
            self._shown_at = time.monotonic()

    async def _news(self, coming: asyncio.Task[Event | None]) -> None:
        pause_s = self._asks_from - time.monotonic()
        await asyncio.wait(
            {coming} | ({self._asking} if self._asking else set()),
            return_when=asyncio.FIRST_COMPLETED,
            timeout=pause_s if pause_s > 0 else None,
        )

    def _show(self, event: Event) -> None:
        match event:
            case Status():
                if not (self._reply.text or self._reply.reasoning or self._reply.calls):
                    self._wait(words_for(event))
            case Reasoning():
                if self._thinks_since is None:
                    self._thinks_since = time.monotonic()
                    self.catch_up()
                    self._wait("Thinking")
            case Call():
                self._show_call(event)
            case _:
                self._end_thought()
                self._asks_from = max(self._asks_from, time.monotonic() + QUIET_S)
                if not self._reply.has_more or time.monotonic() - self._shown_at >= FRAME_S:
                    self.catch_up()

    def _show_call(self, call: Call) -> None:
        self._end_thought()
        self.catch_up()
        line = call_line(call)
        if self._told.get(call.call_id) == line:
            return
        self._told[call.call_id] = line
        if call.state == "running" and call.progress is not None:
            if self._asked is None:
                self._wait(line)  # it changes a few times a second, and goes
            return
        self._settle()
        self._ground.note(line)

    def _settle(self) -> None:
        """What is shown stays: something else comes below it."""
        self._end_wait()
        self._page.settle()

    def _wait(self, line: str) -> None:
        if not self._is_waiting:
            self._page.settle()
        self._is_waiting = bool(line)
        self._ground.wait(line)

    def _end_wait(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._ground.wait("")

    def _end_thought(self) -> None:
        if self._thinks_since is not None:
            since, self._thinks_since = self._thinks_since, None
            self._settle()
            self._ground.note(thought_for(time.monotonic() - since))

    async def _ask(self) -> None:
        """Asks about the next call that needs it."""
        several = (asked_of(call) for call in self._reply.calls)
        asking = next((one for one in several if one is not None and _key(one) not in self._decided), None)
        if asking is None or self._asked is None or _key(asking) != _key(self._asked):
            await self._stop_asking()
            self._asked = asking
        if self._asked is None or self._asking is not None or time.monotonic() < self._asks_from:
            return
        self._settle()
        self._asking = asyncio.create_task(self._ground.answer(self._asked))

    async def _stop_asking(self) -> None:
        asking, self._asking, self._asked = self._asking, None, None
        if asking is not None and not asking.done():
            asking.cancel()
            await asyncio.wait((asking,))

    @staticmethod
    def _still(asking: Asking) -> bool:
        """Whether the call asks this still."""
        now = asked_of(asking.call)
        return now is not None and now.sha256 == asking.sha256

    async def _answer(self, line: str | None) -> None:
        """Takes what was typed; what is no answer is asked again. Whoever left allows nothing. Raises Disconnected."""
        self._asking, asked = None, self._asked
        if asked is None or not self._still(asked):
            self._asked = None
            return
        decided = Decided("deny") if line is None else asked.answer(line)
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
                self._ground.fail(str(refused))
            if refused.retryable or refused.code == "bad_params":
                self._decided.discard(_key(asked))
                self._asks_from = time.monotonic() + max(AGAIN_S, (refused.retry_after_ms or 0) / 1000)


def _key(asking: Asking) -> tuple[str, str]:
    return asking.call.call_id, asking.sha256


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None
