"""Asks the user about the calls of a reply: whether they may run, and what their forms ask for; sends the decisions."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from midstream.client import Client
from midstream.errors import Refused
from midstream.reply import Call, Question, Reply
from midstream.terminal.texts import escaped, permission

AGAIN_S = 1.0
"""Pause, at least, before asking again about a call whose decision the server could not take."""
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
    """A question, a line at a time. `sha256`: of what a decision is about."""

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
    return ApprovalPrompt(call) if call.asks else None


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
