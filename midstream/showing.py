"""Shows a reply in a terminal as it comes, and asks about the calls that need it. Where nobody can be asked, it denies them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Literal

from midstream.calls import Call
from midstream.client import Client
from midstream.errors import Refused
from midstream.plain import call_line, question, thought_for
from midstream.reply import Event, Reasoning, Reply, Status
from midstream.wait_line import WaitLine

_ANSWERS: dict[str, Literal["allow", "deny"]] = {"y": "allow", "yes": "allow", "n": "deny", "no": "deny"}
AGAIN_S = 1.0
"""After so long, at least, it is asked again about a call of which the server could not take a decision."""
_UNASKED = "asks for permission, and nobody can be asked where the input is no terminal: it is denied"


def dim(line: str) -> None:
    """Writes a line that is no part of the conversation: for those who watch."""
    if sys.stdout.isatty():
        print(f"\033[2m{line}\033[0m", flush=True)


class Showing:
    """One reply on the screen, to its end. `lines` are those that the user types."""

    def __init__(self, client: Client, reply: Reply, lines: asyncio.Queue[str]) -> None:
        self._client = client
        self._reply = reply
        self._lines = lines
        self._wait = WaitLine(sys.stdout)
        self._thinks_since: float | None = None
        self._told: dict[str, str] = {}  # of each call, the last line
        self._decided: set[str] = set()  # calls that were decided here
        self._typing: asyncio.Task[str] | None = None
        self._asked: Call | None = None  # whose question stands on the last line
        self._ahead: list[str] = []
        self._asks_from = 0.0  # on the monotonic clock: before, nothing is asked
        self._is_midline = False

    async def run(self) -> None:
        """Shows what comes, and asks. Raises Disconnected, ClientError."""
        events = self._reply.events()
        coming = asyncio.create_task(_next(events))
        try:
            for call in self._reply.calls:
                self._show_call(call)
            while True:
                await self._ask()
                pause_s = self._asks_from - time.monotonic()
                await asyncio.wait(
                    {coming} | ({self._typing} if self._typing else set()),
                    return_when=asyncio.FIRST_COMPLETED,
                    timeout=pause_s if pause_s > 0 else None,
                )
                if self._typing is not None and self._typing.done():
                    await self._answer(self._typing.result())
                elif coming.done():
                    if (event := coming.result()) is None:
                        return
                    coming = asyncio.create_task(_next(events))
                    self._show(event)
        finally:
            coming.cancel()
            self._stop_asking()
            for line in self._ahead:
                self._lines.put_nowait(line)
            self._end_thought()
            self._make_room(breaks=False)
            if self._is_midline and self._reply.done and self._reply.done["reason"] == "tools":
                print()  # the reply that follows is another one

    def _show(self, event: Event) -> None:
        match event:
            case Status():
                if not (self._reply.text or self._reply.reasoning or self._reply.calls):
                    self._wait.show(event)
            case Reasoning():
                if self._thinks_since is None:
                    self._thinks_since = time.monotonic()
                    self._wait.say("Thinking")
            case Call():
                self._show_call(event)
            case text:
                self._end_thought()
                self._make_room(breaks=False)
                self._is_midline = not text.endswith("\n")
                print(text, end="", flush=True)

    def _show_call(self, call: Call) -> None:
        self._end_thought()
        line = call_line(call)
        if self._told.get(call.call_id) == line:
            return
        self._told[call.call_id] = line
        if call.state != "running" or call.progress is None:
            self._make_room()
            dim(line)
        elif self._asked is None:
            self._make_room()
            self._wait.say(line)  # it changes a few times a second, and goes

    def _end_thought(self) -> None:
        if self._thinks_since is not None:
            since, self._thinks_since = self._thinks_since, None
            self._make_room()
            dim(thought_for(time.monotonic() - since))

    def _make_room(self, *, breaks: bool = True) -> None:
        """What comes next stands on a line of its own; not so a text that goes on."""
        self._wait.clear()
        if self._asked is not None or (breaks and self._is_midline and sys.stdout.isatty()):
            print()
            self._is_midline, self._asked = False, None

    async def _ask(self) -> None:
        """Puts the question of the next call that asks on the last line. Raises Disconnected."""
        call = next((one for one in self._reply.calls if one.asks and one.call_id not in self._decided), None)
        if call is None:
            self._stop_asking()
        elif time.monotonic() < self._asks_from:
            return
        elif not (sys.stdin.isatty() and sys.stdout.isatty()):
            print(f"midstream: {call.name} {_UNASKED}.", file=sys.stderr, flush=True)
            await self._decide(call, "deny")
        elif self._asked is not call:
            self._make_room()
            self._asked = call
            self._stop_asking()  # what was typed to another question is no answer to this one
            self._set_aside()
            self._typing = asyncio.create_task(self._lines.get())
            print(question(call), end="", flush=True)

    def _set_aside(self) -> None:
        """What was typed before a question was read is no answer to it: it is said when the reply is over."""
        while not self._lines.empty():
            if not (line := self._lines.get_nowait()):  # the end of the input stays one
                self._lines.put_nowait(line)
                return
            self._ahead.append(line)

    def _stop_asking(self) -> None:
        if self._typing is not None:
            self._typing.cancel()
        self._typing = None

    async def _answer(self, line: str) -> None:
        """Takes what was typed; what is no answer is asked again. Raises Disconnected."""
        call, self._asked, self._typing = self._asked, None, None
        if not line:  # the end of the input: whoever left allows nothing
            self._lines.put_nowait("")
            print()
        decision = _ANSWERS.get(line.strip().lower()) if line else "deny"
        if call is not None and call.asks and decision is not None:
            await self._decide(call, decision)

    async def _decide(self, call: Call, decision: Literal["allow", "deny"]) -> None:
        """Says it; where the server can't take it now, it is asked again later. Raises Disconnected.

        Where somebody else was first, what they decided is told by the reply.
        """
        self._decided.add(call.call_id)
        place = self._reply.accepted["conversation_id"]
        try:
            await self._client.tool_decision(
                call.call_id, decision, args_sha256=call.args_sha256, conversation_id=place
            )
        except Refused as refused:
            if refused.code != "conflict":
                print(f"[{refused}]", flush=True)
            if refused.retryable:
                self._decided.discard(call.call_id)
                self._asks_from = time.monotonic() + max(AGAIN_S, (refused.retry_after_ms or 0) / 1000)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None
