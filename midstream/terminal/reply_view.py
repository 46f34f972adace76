"""Shows a reply on the screen as it comes, and asks about its calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

from midstream.calls import Call
from midstream.client import Client
from midstream.reply import Event, Reasoning, Reply, Status
from midstream.terminal.call_prompter import CallPrompter
from midstream.terminal.call_prompts import CallPrompt
from midstream.terminal.texts import call_line, kept_up_to, reasoning_text, status_text
from midstream.terminal.user_interface import Page

FRAME_S = 0.04
"""Seconds between two frames while more text comes than can be shown."""


class ReplySurface(Protocol):
    """The place where a reply is shown."""

    def page(self, before: str) -> Page:
        """Return the page for the text."""

    def note(self, line: str) -> None:
        """Print a line that is not part of the text."""

    def fail(self, line: str) -> None:
        """Print a failure."""

    def wait(self, line: str) -> None:
        """Show a line until something else comes; an empty one shows nothing."""

    async def answer(self, call_prompt: CallPrompt) -> str | None:
        """Return the line that was typed for a question; None if nobody can be asked, or the user left."""


class ReplyView:
    """One reply on the screen, to its end. `before`: the text that it continues."""

    def __init__(self, client: Client, reply: Reply, surface: ReplySurface, *, before: str = "") -> None:
        self._reply = reply
        self._surface = surface
        self._page = surface.page(before)
        self._shown_at = 0.0
        self._is_waiting = False
        self._holds = False
        self._thinks_since: float | None = None
        self._shown_calls: dict[str, str] = {}  # the last line of each call
        self._prompter = CallPrompter(client, reply, surface.answer, surface.fail)

    async def run(self) -> None:
        """Show what comes, and ask. Raises Disconnected, ClientError."""
        events = self._reply.events()
        next_event = asyncio.create_task(_next(events))
        try:
            self.catch_up()
            for call in self._reply.calls:
                self._show_call(call)
            while True:
                await self._prompter.ask(self._settle)
                await self._wait_for_event(next_event)
                if self._prompter.line is not None and self._prompter.line.done():
                    await self._prompter.take()
                elif next_event.done():
                    if (event := next_event.result()) is None:
                        return
                    next_event = asyncio.create_task(_next(events))
                    if not isinstance(event, Call) or self._prompter.is_stale:
                        await self._prompter.stop()  # text continues, or somebody else was first
                    self._show(event)
        finally:
            next_event.cancel()
            await self._prompter.stop()
            self._end_thought()
            self._end_wait()
            if self._page.end(self._reply.text):
                self._surface.note(kept_up_to(self._reply.text))

    def hold(self) -> None:
        """Show all text that was read, and nothing after it: the reply is being stopped."""
        self.catch_up()
        self._holds = True

    def resume(self) -> None:
        """Show text again: the reply was not stopped."""
        self._holds = False
        self.catch_up()

    def catch_up(self) -> None:
        """Show all text that was read, unless the reply is being stopped."""
        if self._reply.text and not self._holds:
            self._end_wait()
            self._page.show(self._reply.text)
            self._shown_at = time.monotonic()

    async def _wait_for_event(self, next_event: asyncio.Task[Event | None]) -> None:
        await asyncio.wait(
            {next_event} | ({self._prompter.line} if self._prompter.line else set()),
            return_when=asyncio.FIRST_COMPLETED,
            timeout=self._prompter.pause_s,
        )

    def _show(self, event: Event) -> None:
        match event:
            case Status():
                if not (self._reply.text or self._reply.reasoning or self._reply.calls):
                    self._wait(status_text(event))
            case Reasoning():
                if self._thinks_since is None:
                    self._thinks_since = time.monotonic()
                    self.catch_up()
                    self._wait("Thinking")
            case Call():
                self._show_call(event)
            case _:
                self._end_thought()
                self._prompter.wait_for_quiet()
                if not self._reply.has_more or time.monotonic() - self._shown_at >= FRAME_S:
                    self.catch_up()

    def _show_call(self, call: Call) -> None:
        self._end_thought()
        self.catch_up()
        line = call_line(call)
        if self._shown_calls.get(call.call_id) == line:
            return
        self._shown_calls[call.call_id] = line
        if call.state == "running" and call.progress is not None:
            if not self._prompter.is_open:
                self._wait(line)  # it changes a few times a second, and is removed
            return
        self._settle()
        self._surface.note(line)

    def _settle(self) -> None:
        """Fix what is shown: something else follows below it."""
        self._end_wait()
        self._page.settle()

    def _wait(self, line: str) -> None:
        if not self._is_waiting:
            self._page.settle()
        self._is_waiting = bool(line)
        self._surface.wait(line)

    def _end_wait(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._surface.wait("")

    def _end_thought(self) -> None:
        if self._thinks_since is not None:
            since, self._thinks_since = self._thinks_since, None
            self._settle()
            self._surface.note(reasoning_text(time.monotonic() - since))


class HoldableOutput:
    """Shows replies one at a time, and holds them while they are being stopped."""

    _showing: ReplyView | None = None

    async def _show(self, showing: ReplyView) -> None:
        """Show a reply to its end. Raises Disconnected, ClientError."""
        self._showing = showing
        try:
            await showing.run()
        finally:
            self._showing = None

    def hold(self) -> None:
        """Show all that has come, and nothing after it: a pipe can't remove anything."""
        if self._showing is not None:
            self._showing.hold()

    def resume(self) -> None:
        """Show text again."""
        if self._showing is not None:
            self._showing.resume()


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None
