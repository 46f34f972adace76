"""The questions at a terminal about a call: whether it may run, and the forms of its tool. Pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from midstream.calls import Call, Question
from midstream.terminal.texts import escaped, permission

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
