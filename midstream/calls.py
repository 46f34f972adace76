"""The tool calls of a reply, and their states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Frame = dict[str, Any]
CallState = Literal["waiting", "running", "done", "denied", "cancelled", "expired", "lost"]
"""`waiting` and `running` are open; all other states are final."""

_OPEN = frozenset({"waiting", "running"})


@dataclass(slots=True, frozen=True, kw_only=True)
class Question:
    """A question of a running call. `schema`: the answer's JSON Schema, as text; the answer is a flat object.

    `Client.tool_decision` answers it, with its `sha256` as `args_sha256` and the text of a JSON object as `args`.
    `expires_at`: Unix milliseconds.
    """

    message: str
    schema: str
    sha256: str
    expires_at: int


@dataclass(slots=True, kw_only=True)
class Call:
    """A call of a tool, as far as it is known. `args` is the text of a JSON object, `args_sha256` the hash of that text.

    `where` says who runs it: `client` or `server`. `needs` is `approval` if somebody has to allow it. `off` is the length of
    the reply's text before it; `expires_at` is in Unix milliseconds. `content`, or else `error`, is its result. `progress` (0
    to 1) and `message` are the server's progress; `question` is what it asks meanwhile.
    """

    call_id: str
    index: int
    name: str
    args: str
    args_sha256: str
    where: Literal["client", "server"]
    needs: Literal["none", "approval"]
    off: int
    expires_at: int | None = None
    state: CallState = "waiting"
    content: str | None = None
    error: str | None = None
    progress: float | None = None
    message: str = ""
    question: Question | None = None

    @classmethod
    def of(cls, frame: Frame) -> Call:
        """Read a call from a `tool_call` frame, or from a reply in the history."""
        fields = {name: frame[name] for name in cls.__slots__ if frame.get(name) is not None}
        return cls(**fields | {"question": _question(frame)})

    @property
    def arguments(self) -> dict[str, Any]:
        """The parsed arguments."""
        read: dict[str, Any] = json.loads(self.args)
        return read

    @property
    def is_open(self) -> bool:
        """Whether the call is not settled yet."""
        return self.state in _OPEN

    @property
    def asks(self) -> bool:
        """Whether somebody has to allow or deny it."""
        return self.state == "waiting" and self.needs == "approval"

    def take(self, frame: Frame) -> None:
        """Take its new state from a `tool_state` frame or the history."""
        self.state = frame["state"]
        self.content, self.error = frame.get("content"), frame.get("error")
        self.args = frame.get("args", self.args)
        self.args_sha256 = frame.get("args_sha256", self.args_sha256)
        self.question = _question(frame)

    def note(self, status: Frame) -> None:
        """Take the server's progress."""
        self.progress, self.message = status.get("progress"), status.get("message", "")

    def cancel(self) -> None:
        """Cancel it: its turn ended for another reason, so no answer will come."""
        if self.is_open:
            self.state = "cancelled"
        self.question = None


def _question(frame: Frame) -> Question | None:
    fields_of_question = frame.get("question")
    return (
        None
        if fields_of_question is None
        else Question(**{name: fields_of_question[name] for name in Question.__slots__})
    )
