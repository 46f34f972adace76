"""Standard input and output of a chat, and how a reply is shown as it comes, with the questions about its calls."""

from __future__ import annotations

import asyncio
import sys
import termios
import threading
import time
from contextlib import suppress

from midstream.client import Client
from midstream.reply import Call, Event, Reasoning, Reply, Status
from midstream.server_connection import Refused
from midstream.terminal.texts import call_line, clean, kept_up_to, permission, reasoning_text, status_text

QUIET_S = 0.3
"""Seconds without text before a question is asked: text may follow a call."""
_YES, _NO = {"y", "yes"}, {"n", "no"}


class UserInterface:
    """A person's terminal, or a pipe, whose output has only the replies; failures go to standard error."""

    def __init__(self) -> None:
        self.is_watched = sys.stdin.isatty() and sys.stdout.isatty()
        """Whether somebody sees notes and can be asked."""
        self.has_failed = False
        """Whether a line was refused, or a reply is incomplete."""
        self._lines = typed_lines(sys.stdin.fileno())
        self._prompt = ""  # behind which the cursor is

    async def line(self) -> str | None:
        """Return the next line; None once the user has left."""
        return await self._read("> ") or None

    async def agrees(self, question: str) -> bool:
        """Return whether the user says yes, for which what was typed before the question does not count."""
        left = False
        while not (left or self._lines.empty()):
            left = not self._lines.get_nowait()
        if left:
            self._lines.put_nowait("")
        else:
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        while line := await self._read(clean(question)):
            if (word := line.strip().lower()) in _YES | _NO:
                return word in _YES
        self._lines.put_nowait("")  # the user has left
        return False

    async def _read(self, prompt: str) -> str:
        """Return the next line; an empty one at the end of the input."""
        self._prompt, line = prompt if self.is_watched else "", ""
        try:
            if self._prompt:
                print(self._prompt, end="", flush=True)
            line = await self._lines.get()
        finally:
            if self._prompt and not line:  # nobody has ended the prompt's line
                print(flush=True)
            self._prompt = ""
        return line

    def write(self, text: str) -> None:
        """Write a part of a reply; without control characters to a terminal."""
        print(clean(text) if sys.stdout.isatty() else text, end="", flush=True)

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""
        print(*map(clean, lines), sep="\n", flush=True)

    def note(self, line: str) -> None:
        """Print a note for a person that is not part of the conversation, and an open prompt again."""
        if self.is_watched and line:
            before = "\n" if self._prompt else ""
            print(f"{before}{clean(line)}\n{self._prompt}", end="", flush=True)

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


class ReplyView:
    """One reply on the screen, to its end, and the questions about its calls."""

    def __init__(self, client: Client, reply: Reply, ui: UserInterface) -> None:
        self.reply = reply
        self._client = client
        self._ui = ui
        self._written = 0
        self._is_midline = False
        self._holds = False
        self._status = ""
        self._thinks_since: float | None = None
        self._shown_calls: dict[str, str] = {}
        self._decided: set[str] = set()
        self._asked: Call | None = None  # about it the user is asked
        self._answering: asyncio.Task[bool] | None = None

    async def run(self) -> None:
        """Show what comes, and ask. Raises Disconnected, ClientError."""
        events = self.reply.events()
        next_event = asyncio.ensure_future(anext(events, None))
        try:
            self._write()
            for call in self.reply.calls:
                self._show_call(call)
            while True:
                self._ask()
                waited = [next_event] if self._answering is None else [next_event, self._answering]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if self._answering is not None and self._answering.done():
                    await self._decide(is_allowed=self._answering.result())
                elif (event := next_event.result()) is None:
                    return
                else:
                    next_event = asyncio.ensure_future(anext(events, None))
                    if not isinstance(event, Call) or not self._is_still_asked:
                        await self._withdraw()  # text continues, or somebody else was first
                    self._show(event)
        finally:
            next_event.cancel()
            await self._withdraw()
            self._end_thought()
            was_more, self._holds = self._written > len(self.reply.text), False
            self._write()
            self._end_line()
            if was_more:
                self._ui.note(kept_up_to(self.reply.text))

    def hold(self) -> None:
        """Show all text that was read, and nothing after it: the reply is being stopped."""
        self._write()
        self._holds = True

    def resume(self) -> None:
        """Show text again: the reply was not stopped."""
        self._holds = False
        self._write()

    def _write(self) -> None:
        """Write the new text, unless the reply is being stopped."""
        if not self._holds and (new := self.reply.text[self._written :]):
            self._ui.write(new)
            self._is_midline = not new.endswith("\n")
            self._written = len(self.reply.text)

    def _end_line(self) -> None:
        if self._is_midline:
            self._is_midline = False
            self._ui.write("\n")

    def _note(self, line: str) -> None:
        self._end_line()
        self._ui.note(line)

    def _show(self, event: Event) -> None:
        match event:
            case Status():
                words = "" if self.reply.text or self.reply.calls else status_text(event)
                if words and words != self._status:
                    self._note(f"[{words}]")
                self._status = words
            case Reasoning():
                if self._thinks_since is None:
                    self._thinks_since = time.monotonic()
            case Call():
                self._show_call(event)
            case _:
                self._end_thought()
                self._write()

    def _show_call(self, call: Call) -> None:
        self._end_thought()
        self._write()
        line = call_line(call)
        if self._shown_calls.get(call.call_id) != line:
            self._shown_calls[call.call_id] = line
            self._note(line)

    def _end_thought(self) -> None:
        if self._thinks_since is not None:
            since, self._thinks_since = self._thinks_since, None
            self._note(reasoning_text(time.monotonic() - since))

    @property
    def _is_still_asked(self) -> bool:
        return self._asked is not None and self._asked.needs_decision

    def _ask(self) -> None:
        """Begin to ask about the first call that needs it, unless the user is being asked."""
        if self._answering is None:
            asking = (call for call in self.reply.calls if call.needs_decision)
            self._asked = next((call for call in asking if call.call_id not in self._decided), None)
            if self._asked is not None:
                self._answering = asyncio.create_task(self._answer(self._asked))

    async def _answer(self, call: Call) -> bool:
        if not self._ui.is_watched:
            print_error(f"{call.name} needs approval, but the input is not a terminal: denied.")
            return False
        await asyncio.sleep(QUIET_S)
        self._end_line()
        return await self._ui.agrees(permission(call))

    async def _withdraw(self) -> None:
        """Withdraw the question for now."""
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
            await asyncio.wait((answering,))

    async def _decide(self, *, is_allowed: bool) -> None:
        """Send a decision; ask again if the server can't take it now. Raises Disconnected.

        If somebody else decided first, the reply shows that.
        """
        call, self._answering = self._asked, None
        if call is None or not call.needs_decision:
            return
        self._decided.add(call.call_id)
        try:
            await self._client.tool_decision(
                call.call_id,
                "allow" if is_allowed else "deny",
                args_sha256=call.args_sha256,
                conversation_id=self.reply.accepted["conversation_id"],
            )
        except Refused as refused:
            if refused.code != "conflict":
                self._ui.fail(str(refused))
            if refused.retryable:
                self._decided.discard(call.call_id)
