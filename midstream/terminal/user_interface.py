"""A chat without a terminal, and how a reply is shown as it comes, with the questions about its calls."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Literal, Protocol

from midstream.client import Client
from midstream.reply import Call, Event, Reasoning, Reply, Status
from midstream.server_connection import Refused
from midstream.terminal.texts import (
    call_line,
    clean,
    kept_up_to,
    permission,
    reasoning_text,
    status_text,
)


class UserInterface:
    """Files: lines come from the input, replies go to the output, failures to standard error. See `Screen` for a person.

    `why_unasked`: why nobody can be asked about calls.
    """

    is_watched = False
    """Whether somebody sees notes and can be asked."""

    def __init__(self, why_unasked: str) -> None:
        self.why_unasked = why_unasked
        self.has_failed = False
        """Whether a line was refused, or a reply is incomplete."""
        self._lines = typed_lines(sys.stdin.fileno())

    async def line(self) -> str | None:
        """Return the next line; None once the user has left."""
        return await self._lines.get() or None

    def drop_typed(self) -> None:
        """Drop what was typed before a question."""

    async def ask(self, question: str) -> str:
        """Return the line that was typed for a question. Raises EOFError if nobody can be asked, or the user left."""
        raise EOFError(question)

    def clear_input(self) -> bool:
        """Clear the typed line; return whether there was one. Ctrl-C as a signal also calls this."""
        return False

    def page(self, before: str) -> Page:  # noqa: ARG002 - it was written with the earlier reply
        """Return the page for a reply's text. `before`: the text that it continues."""
        return PlainPage(clean if sys.stdout.isatty() else str)

    def reading(self) -> AbstractContextManager[None]:
        """Return the context in which a reply is shown."""
        return nullcontext()

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""
        print(*map(clean, lines), sep="\n", flush=True)

    def note(self, line: str) -> None:
        """Print a note for a person that is not part of the conversation."""

    def wait(self, line: str) -> None:
        """Show a person a line until something else comes; an empty one shows nothing."""

    def fail(self, line: str) -> None:
        """Print a failure."""
        self.has_failed = True
        print_error(line)


def print_error(line: str) -> None:
    """Print a line to standard error, escaped: that is usually a terminal, and a server may have chosen the words."""
    print(f"midstream: {clean(line)}", file=sys.stderr, flush=True)


def typed_lines(source: int) -> asyncio.Queue[str]:
    """Return a queue of lines as they are typed; an empty one is the end of the input.

    A thread reads them. A terminal that is made non-blocking for the event loop is non-blocking for standard
    output, too; and a file can't be waited for at all.
    """
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed: the user left
            with (
                suppress(OSError),
                open(source, encoding="utf-8", errors="replace", newline="\n", closefd=False) as file,
            ):
                for line in file:  # a terminal that is gone ends its input
                    loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True, name="standard input").start()
    return lines


class Page(Protocol):
    """Takes the growing text of a reply."""

    def show(self, text: str) -> None:
        """Show the text so far."""

    def settle(self) -> None:
        """Fix what is shown: something else follows below it, and then perhaps more of the text."""

    def end(self, text: str) -> bool:
        """Show the text as it is kept; return whether more was shown that can't be removed."""


class PlainPage:
    """Writes text to the output as it comes, through `writes`, which may remove control characters."""

    def __init__(self, writes: Callable[[str], str]) -> None:
        self._writes = writes
        self._written = 0
        self._is_midline = False

    def show(self, text: str) -> None:
        """Write the new part of the text."""
        if new := self._writes(text[self._written :]):
            print(new, end="", flush=True)
            self._is_midline = not new.endswith("\n")
        self._written = max(self._written, len(text))

    def settle(self) -> None:
        """End the line."""
        if self._is_midline:
            self._is_midline = False
            print(flush=True)

    def end(self, text: str) -> bool:
        """Write the rest; return whether more was written before."""
        was_more = self._written > len(text)
        self.show(text)
        self.settle()
        return was_more


AGAIN_S = 1.0
"""Least pause before asking again about a call whose decision the server could not take."""
QUIET_S = 0.3
"""Seconds without text before a question is asked: text may follow a call."""
Answer = Literal["allow", "deny"]


class ReplyView:
    """One reply on the screen, to its end, and the questions about its calls.

    `before`: the text that it continues. `frame_s`: seconds between two frames while more text comes than can be shown.
    """

    def __init__(
        self, client: Client, reply: Reply, ui: UserInterface, *, before: str = "", frame_s: float = 0.04
    ) -> None:
        self.reply = reply
        self._client = client
        self._ui = ui
        self._page = ui.page(before)
        self._frame_s = frame_s
        self._shown_at = 0.0
        self._is_waiting = False
        self._holds = False
        self._thinks_since: float | None = None
        self._shown_calls: dict[str, str] = {}
        self._decided: set[str] = set()  # calls that were decided here
        self._open: Call | None = None  # about it the user is asked
        self._answering: asyncio.Task[Answer] | None = None
        self._quiet_from = 0.0  # by the monotonic clock: nothing is asked before

    async def run(self) -> None:
        """Show what comes, and ask. Raises Disconnected, ClientError."""
        events = self.reply.events()
        next_event = asyncio.ensure_future(anext(events, None))
        try:
            self._catch_up()
            for call in self.reply.calls:
                self._show_call(call)
            while True:
                self._ask()
                waited: set[asyncio.Future[Any]] = {next_event}
                if self._answering is not None:
                    waited.add(self._answering)
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if self._answering is not None and self._answering.done():
                    await self._decide(self._answering.result())
                else:
                    event = next_event.result()
                    if event is None:
                        return
                    next_event = asyncio.ensure_future(anext(events, None))
                    if not isinstance(event, Call) or not self._is_still_open:
                        await self._withdraw()  # text continues, or somebody else was first
                    self._show(event)
        finally:
            next_event.cancel()
            await self._withdraw()
            self._end_thought()
            self._end_wait()
            if self._page.end(self.reply.text):
                self._ui.note(kept_up_to(self.reply.text))

    def hold(self) -> None:
        """Show all text that was read, and nothing after it: the reply is being stopped."""
        self._catch_up()
        self._holds = True

    def resume(self) -> None:
        """Show text again: the reply was not stopped."""
        self._holds = False
        self._catch_up()

    def _catch_up(self) -> None:
        """Show all text that was read, unless the reply is being stopped."""
        if self.reply.text and not self._holds:
            self._end_wait()
            self._page.show(self.reply.text)
            self._shown_at = time.monotonic()

    def _show(self, event: Event) -> None:
        match event:
            case Status():
                if not (self.reply.text or self.reply.reasoning or self.reply.calls):
                    self._wait(status_text(event))
            case Reasoning():
                if self._thinks_since is None:
                    self._thinks_since = time.monotonic()
                    self._catch_up()
                    self._wait("Thinking")
            case Call():
                self._show_call(event)
            case _:
                self._end_thought()
                self._pause_questions(QUIET_S)
                if not self.reply.has_more or time.monotonic() - self._shown_at >= self._frame_s:
                    self._catch_up()

    def _show_call(self, call: Call) -> None:
        self._end_thought()
        self._catch_up()
        line = call_line(call)
        if self._shown_calls.get(call.call_id) == line:
            return
        self._shown_calls[call.call_id] = line
        if call.state == "running" and call.progress is not None:
            if self._answering is None:
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

    def _ask(self) -> None:
        """Begin to ask about the first call that needs it, unless the user is being asked."""
        if self._answering is None:
            asking = (call for call in self.reply.calls if call.call_id not in self._decided)
            self._open = next((call for call in asking if call.needs_decision), None)
            if self._open is not None:
                self._answering = asyncio.create_task(self._answer(self._open))

    async def _answer(self, call: Call) -> Answer:
        await asyncio.sleep(max(0, self._quiet_from - time.monotonic()))
        self._settle()
        if self._ui.why_unasked:
            print_error(f"{call.name} needs approval, but {self._ui.why_unasked}: denied.")
        self._ui.drop_typed()
        try:
            return "allow" if await _agrees(permission(call), self._ui.ask) else "deny"
        except EOFError:
            return "deny"

    @property
    def _is_still_open(self) -> bool:
        return self._open is not None and self._open.needs_decision

    def _pause_questions(self, seconds: float) -> None:
        self._quiet_from = max(self._quiet_from, time.monotonic() + seconds)

    async def _withdraw(self) -> None:
        """Withdraw the question for now."""
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
            await asyncio.wait((answering,))

    async def _decide(self, answer: Answer) -> None:
        """Send a decision; ask again if the server can't take it now. Raises Disconnected.

        If somebody else decided first, the reply shows that.
        """
        call, self._answering = self._open, None
        if call is None or not call.needs_decision:
            return
        self._decided.add(call.call_id)
        conversation_id = self.reply.accepted["conversation_id"]
        try:
            await self._client.tool_decision(
                call.call_id, answer, args_sha256=call.args_sha256, conversation_id=conversation_id
            )
        except Refused as refused:
            if refused.code != "conflict":
                self._ui.fail(str(refused))
            if refused.retryable:
                self._decided.discard(call.call_id)
                self._pause_questions(max(AGAIN_S, (refused.retry_after_ms or 0) / 1000))


_BOOLEANS = {"y": True, "yes": True, "n": False, "no": False}
Ask = Callable[[str], Awaitable[str]]
"""Returns the line that was typed for a question. Raises EOFError."""


async def _agrees(question: str, ask: Ask) -> bool:
    """Ask until the answer is yes or no; `!` is no."""
    while (line := (await ask(question)).strip().lower()) not in _BOOLEANS and line != "!":
        pass
    return _BOOLEANS.get(line, False)
