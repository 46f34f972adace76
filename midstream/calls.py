"""What a reply calls, and where each call is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Frame = dict[str, Any]
CallState = Literal["waiting", "running", "done", "denied", "cancelled", "expired", "lost"]
"""`waiting` and `running` are open; nothing moves a call out of the others."""

_OPEN = frozenset({"waiting", "running"})


@dataclass(slots=True, frozen=True, kw_only=True)
class Question:
    """What a running call asks. `schema`: of the answer, a flat object, as the text of a JSON Schema.

    `Client.tool_decision` answers it, with its `sha256` as `args_sha256` and the text of a JSON object as `args`.
    `expires_at`: Unix milliseconds.
    """

    message: str
    schema: str
    sha256: str
    expires_at: int


@dataclass(slots=True, kw_only=True)
class Call:
    """A call of a tool, as far as it is known. `args` is the text of a JSON object, `args_sha256` is of that text.

    `where` is who runs it: `client` or `server`. `needs` is `approval` where somebody has to allow it. `off` is the length
    of the reply's text before it, `expires_at` in Unix milliseconds. `content`, or else `error`, is what came of it;
    `progress` (0 to 1) and `message` say how far the server is with it; `question` is what it asks meanwhile.
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
        """A call of a `tool_call` frame, or as a reply in the history has it."""
        told = {name: frame[name] for name in cls.__slots__ if frame.get(name) is not None}
        return cls(**told | {"question": _question(frame)})

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, read."""
        read: dict[str, Any] = json.loads(self.args)
        return read

    @property
    def is_open(self) -> bool:
        """Whether something may still come of it."""
        return self.state in _OPEN

    @property
    def asks(self) -> bool:
        """Whether somebody has to allow or deny it."""
        return self.state == "waiting" and self.needs == "approval"

    def take(self, frame: Frame) -> None:
        """Takes what a `tool_state`, or the history, says became of it."""
        self.state = frame["state"]
        self.content, self.error = frame.get("content"), frame.get("error")
        self.args = frame.get("args", self.args)
        self.args_sha256 = frame.get("args_sha256", self.args_sha256)
        self.question = _question(frame)

    def note(self, status: Frame) -> None:
        """Takes how far the server is with it."""
        self.progress, self.message = status.get("progress"), status.get("message", "")

    def cancel(self) -> None:
        """Its turn ended otherwise than by its calls: nobody answers it any more."""
        if self.is_open:
            self.state = "cancelled"
        self.question = None


def _question(frame: Frame) -> Question | None:
    asked = frame.get("question")
    return None if asked is None else Question(**{name: asked[name] for name in Question.__slots__})
