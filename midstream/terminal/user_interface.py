"""What a chat needs of a terminal or a pipe: how a reply is shown as it comes, and how the user is asked about its calls."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TextIO

from midstream.client import Client
from midstream.reply import Call, Event, Question, Reasoning, Reply, Status
from midstream.server_connection import Frame, Refused
from midstream.terminal.texts import (
    call_line,
    clean,
    escaped,
    is_whole,
    kept_up_to,
    permission,
    reasoning_text,
    status_text,
)

_READ_BYTES = 64 * 1024
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
        """Clear the typed line; return whether there was one. Ctrl-C as a signal also calls this."""

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


class Pipe(UserInterface):
    """Files: lines come from the input, replies go to the output, failures to standard error.

    `has_failed`: a line was refused, or a reply is incomplete. `why_unasked`: why nobody can be asked about calls.
    """

    is_watched = False

    def __init__(self, why_unasked: str) -> None:
        self._why_unasked = why_unasked
        self._lines = typed_lines(sys.stdin.fileno())
        self.has_failed = False

    async def line(self) -> str | None:
        """Return the next line; None at the end of the file."""
        return await self._lines.get() or None

    async def confirm(self, question: str) -> bool:  # noqa: ARG002 - a file needs no confirmation
        """Confirm every command."""
        return True

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""
        print(*map(clean, lines), sep="\n", flush=True)

    def note(self, line: str) -> None:
        """Print nothing: nobody watches."""

    def clear_input(self) -> bool:
        """Return False: nothing is typed."""
        return False

    def wait(self, line: str) -> None:
        """Print nothing: nobody watches."""

    def show_past(self, message: Frame) -> None:
        """Print nothing: the output only has replies to the input."""

    def fail(self, line: str) -> None:
        """Print a failure to standard error."""
        self.has_failed = True
        print_error(line)

    def page(self, before: str) -> PlainPage:  # noqa: ARG002 - it was written with the earlier reply
        """Return a page for the text as it is; on a terminal without control characters."""
        return PlainPage(sys.stdout, clean if sys.stdout.isatty() else str)

    async def answer(self, call_prompt: CallPrompt) -> str | None:
        """Deny: nobody can be asked."""
        print_error(f"{call_prompt.call.name} needs approval, but {self._why_unasked}: denied.")
        return None

    def ended(self, reason: str) -> None:
        """Print that a reply is incomplete."""
        if not is_whole(reason):
            self.fail(f"the reply is incomplete: {reason}")


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
            for line in _read(source):
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True, name="standard input").start()
    return lines


def _read(source: int) -> Iterator[str]:
    """Yield lines with their ends. A terminal that is gone ends its input."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    with suppress(OSError):
        while piece := os.read(source, _READ_BYTES):
            *whole, rest = (rest + decoder.decode(piece)).split("\n")
            yield from (f"{line}\n" for line in whole)
    if rest:
        yield rest


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


AGAIN_S = 1.0
"""Least pause before asking again about a call whose decision the server could not take."""
QUIET_S = 0.3
"""Seconds without text before a question is asked: text may follow a call."""
_ANSWERS: dict[str, Literal["allow", "deny"]] = {"y": "allow", "yes": "allow", "n": "deny", "no": "deny"}
_BOOLEANS = {"y": True, "yes": True, "n": False, "no": False}


@dataclass(frozen=True)
class Decision:
    """A decision for the server. `args`: the answer to a question, as the text of a JSON object."""

    decision: Literal["allow", "deny"]
    args: str | None = None


class CallPrompt(ABC):
    """A question that is answered line by line. `sha256`: the hash of what is decided."""

    def __init__(self, call: Call, sha256: str) -> None:
        self.call = call
        self.sha256 = sha256
        self.begun = False
        """Whether a line was read."""

    def answer(self, line: str) -> Decision | None:
        """Take a line; return None if another one is needed."""
        self.begun = True
        return self._take(line.strip())

    @property
    @abstractmethod
    def prompt(self) -> str:
        """The text before the line."""

    @abstractmethod
    def _take(self, line: str) -> Decision | None: ...


class ApprovalPrompt(CallPrompt):
    """The question whether a call may run."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, call.args_sha256)

    @property
    def prompt(self) -> str:
        """The question, with all arguments."""
        return permission(self.call)

    def _take(self, line: str) -> Decision | None:
        decision = _ANSWERS.get(line.lower())
        return None if decision is None else Decision(decision)


class FormPrompt(CallPrompt):
    """A tool's form, one field after another. `!` declines; an empty line skips an optional field."""

    def __init__(self, call: Call, question: Question) -> None:
        super().__init__(call, question.sha256)
        schema = json.loads(question.schema)
        self._message = question.message
        self._fields: list[tuple[str, dict[str, Any]]] = list(schema["properties"].items())
        self._required = frozenset(schema.get("required", ()))
        self._content: dict[str, Any] = {}

    @property
    def prompt(self) -> str:
        """The next field; the first prompt has the form's message, too."""
        about = "" if self.begun else f"{escaped(self.call.name)}: {escaped(self._message)} (! declines)\n"
        if not self._fields:
            return f"{about}[y/n] "
        name, field = self._fields[0]
        return f"{about}{escaped(str(field.get('title', name)))}{_hint(field, optional=name not in self._required)}: "

    def _take(self, line: str) -> Decision | None:
        if line == "!":
            return Decision("deny")
        if not self._fields:
            decision = _ANSWERS.get(line.lower())
            return None if decision is None else Decision(decision, "{}" if decision == "allow" else None)
        name, field = self._fields[0]
        value = None if not line and name not in self._required else _value(field, line)
        if value is None and (line or name in self._required):
            return None
        if value is not None:
            self._content[name] = value
        del self._fields[0]
        return None if self._fields else Decision("allow", json.dumps(self._content))


def prompt_for(call: Call) -> CallPrompt | None:
    """Return a call's current question, or None."""
    if call.question is not None:
        return FormPrompt(call, call.question)
    return ApprovalPrompt(call) if call.needs_decision else None


def _choices(field: dict[str, Any]) -> list[str] | None:
    source = field.get("items") or field
    titled = source.get("oneOf") or source.get("anyOf")
    return source.get("enum") if titled is None else [one["const"] for one in titled]


def _hint(field: dict[str, Any], *, optional: bool) -> str:
    if field["type"] == "boolean":
        return " [y/n]"
    if (choices := _choices(field)) is not None:
        several = ", several with commas" if field["type"] == "array" else ""
        return f" ({escaped(' / '.join(choices))}{several})"
    return " (may be empty)" if optional else ""


def _value(field: dict[str, Any], line: str) -> Any:
    """Return the value of a line for a field; None if it is invalid. The server checks the rest."""
    match field["type"]:
        case "boolean":
            return _BOOLEANS.get(line.lower())
        case "array":
            return [part.strip() for part in line.split(",") if part.strip()]
        case "string":
            choices = _choices(field)
            return line if choices is None or line in choices else None
    try:
        return int(line) if field["type"] == "integer" else float(line)
    except ValueError:
        return None


Read = Callable[[CallPrompt], Awaitable[str | None]]
"""Returns the line that was typed for a question; None if nobody can be asked, or the user left."""


class CallPrompter:
    """Asks the user about one reply's calls. `fail` shows a line about a failure."""

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
        """Take the typed line; ask again after an invalid one. A user who left denies the call. Raises Disconnected."""
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
