"""What a chat needs of a terminal or a pipe, and how it shows a reply as it comes, and asks about its calls."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TextIO

from midstream.client import Client
from midstream.reply import Call, Event, Reasoning, Reply, Status
from midstream.terminal.call_prompts import CallPrompt, CallPrompter
from midstream.terminal.texts import call_line, kept_up_to, reasoning_text, status_text

Frame = dict[str, Any]
FRAME_S = 0.04
"""Seconds between two frames while more text comes than can be shown."""


class UserInterface(ABC):
    """A person at a terminal (`Screen`), or files (`Pipe`). Shows one reply at a time."""

    is_watched: bool
    """Whether somebody sees notes and can be asked."""
    _view: ReplyView | None = None
    """The reply that is being shown."""

    @abstractmethod
    async def line(self) -> str | None:
        """Return the next line; None once the user has left."""

    @abstractmethod
    async def confirm(self, question: str) -> bool:
        """Return whether the user confirms a command."""

    @abstractmethod
    async def answer(self, call_prompt: CallPrompt) -> str | None:
        """Return the line that was typed for a question; None if nobody can be asked, or the user left."""

    @abstractmethod
    def clear_input(self) -> bool:
        """Clear the typed line; return whether there was one. Ctrl-C as a signal does that, too."""

    @abstractmethod
    def page(self, before: str) -> Page:
        """Return the page for a reply's text. `before`: the text that it continues."""

    @abstractmethod
    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""

    @abstractmethod
    def note(self, line: str) -> None:
        """Print a note for a person that is not part of the conversation; in a pipe nothing."""

    @abstractmethod
    def fail(self, line: str) -> None:
        """Print a failure."""

    @abstractmethod
    def wait(self, line: str) -> None:
        """Show a line until something else comes; an empty one shows nothing."""

    @abstractmethod
    def show_past(self, message: Frame) -> None:
        """Show a message of the history to a person."""

    @abstractmethod
    def ended(self, reason: str) -> None:
        """Print how a reply ended, if it is incomplete."""

    async def show(self, client: Client, reply: Reply, *, before: str) -> None:
        """Show a reply to its end, and ask about its calls. `before`: the text that it continues.

        Raises Disconnected, ClientError.
        """
        self._view = ReplyView(client, reply, self, before=before)
        try:
            await self._view.run()
        finally:
            self._view = None

    def hold(self) -> None:
        """Show all that has come, and nothing after it: a reply that is being stopped ends there."""
        if self._view is not None:
            self._view.hold()

    def resume(self) -> None:
        """Show text again: the reply was not stopped."""
        if self._view is not None:
            self._view.resume()


class ReplyView:
    """One reply on the screen, to its end. `before`: the text that it continues."""

    def __init__(self, client: Client, reply: Reply, ui: UserInterface, *, before: str = "") -> None:
        self._reply = reply
        self._ui = ui
        self._page = ui.page(before)
        self._shown_at = 0.0
        self._is_waiting = False
        self._holds = False
        self._thinks_since: float | None = None
        self._shown_calls: dict[str, str] = {}  # the last line of each call
        self._prompter = CallPrompter(client, reply, ui.answer, ui.fail)

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
                self._ui.note(kept_up_to(self._reply.text))

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
        self._ui.note(line)

    def _settle(self) -> None:
        """Fix what is shown: something else follows below it."""
        self._end_wait()
        self._page.settle()

    def _wait(self, line: str) -> None:
        if not self._is_waiting:
            self._page.settle()
        self._is_waiting = bool(line)
        self._ui.wait(line)

    def _end_wait(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._ui.wait("")

    def _end_thought(self) -> None:
        if self._thinks_since is not None:
            since, self._thinks_since = self._thinks_since, None
            self._settle()
            self._ui.note(reasoning_text(time.monotonic() - since))


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None


class Page(Protocol):
    """Takes the growing text of a reply."""

    def show(self, text: str) -> None:
        """Show the text so far."""

    def settle(self) -> None:
        """Fix what is shown: something else follows below it, and then perhaps more of the text."""

    def end(self, text: str) -> bool:
        """Show the text as it is kept; return whether more was shown that can't be removed."""


class PlainPage:
    """Writes text as it comes, through `writes`, which may remove control characters."""

    def __init__(self, stream: TextIO, writes: Callable[[str], str] = str) -> None:
        self._stream = stream
        self._writes = writes
        self._written = 0
        self._is_midline = False

    def show(self, text: str) -> None:
        """Write the new part of the text."""
        if new := self._writes(text[self._written :]):
            self._stream.write(new)
            self._stream.flush()
            self._is_midline = not new.endswith("\n")
        self._written = max(self._written, len(text))

    def settle(self) -> None:
        """End the line."""
        if self._is_midline:
            self._is_midline = False
            self._stream.write("\n")
            self._stream.flush()

    def end(self, text: str) -> bool:
        """Write the rest; return whether more was written before."""
        was_more = self._written > len(text)
        self.show(text)
        self.settle()
        return was_more
