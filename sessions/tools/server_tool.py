"""What a server tool is, what a call of one is given, and how it fails. Pure; knows neither functions nor MCP.

ToolFailed            the call failed; its words are for the model
└── ToolLost          whether the tool did its work is not known
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Protocol

import msgspec

from engine.reply_spec import Tool

NAME = r"[A-Za-z0-9_-]{1,64}"
"""What tools are called, as OpenAI's interface has it."""


class Approval(Enum):
    """Whether a user has to allow each call before it is run."""

    NEVER = "never"
    ALWAYS = "always"


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is run here. `name`: 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, unique in its box.

    `parameters`: a JSON Schema of an object, as text. `idempotent`: a call whose end is not known may be run again.
    `server`: what its operator calls the MCP server that has it, and `named_there` what that calls it; empty: a function.
    """

    name: str
    description: str
    parameters: str
    approval: Approval
    idempotent: bool
    server: str = ""
    named_there: str = ""

    @property
    def shown(self) -> Tool:
        """The tool as the model is told of it."""
        return Tool(name=self.name, description=self.description, parameters=self.parameters)


class Progress(msgspec.Struct, frozen=True):
    """How far a call is, in the tool's own unit. `total`: None where it is not known. `message` is for the user."""

    done: float
    total: float | None = None
    message: str = ""


class Elicitation(msgspec.Struct, frozen=True):
    """What a tool asks the user while it runs. `schema`: a JSON Schema, as text, of an object with plain members.

    MCP's elicitation, form mode: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation
    """

    message: str
    schema: str


class Accepted(msgspec.Struct, frozen=True):
    """The user answered. `content`: what the elicitation's schema asks for."""

    content: dict[str, Any]


class Declined(msgspec.Struct, frozen=True):
    """The user said no."""


class Dismissed(msgspec.Struct, frozen=True):
    """The user chose nothing: looked away, left, or the time for an answer is over."""


Answer = Accepted | Declined | Dismissed
Elicit = Callable[[Elicitation], Awaitable[Answer]]


async def nobody_to_ask(_: Elicitation) -> Answer:
    """The `elicit` of a call that has no user to ask."""
    return Dismissed()


def no_progress(_: Progress) -> None:
    """The `progress` of a call that nobody watches."""


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is. `owner`: an opaque digest of whose history it is; `call_id`: the same for the same call, run again.

    `elicit` is awaited by a running tool; what it raises fails the call. `progress` is called on the event loop, returns
    at once, and is called a few times a second at most.
    """

    owner: str
    conversation: str
    call_id: str
    elicit: Elicit = nobody_to_ask
    progress: Callable[[Progress], None] = no_progress


class ToolFailed(Exception):
    """A call failed. The message is for the model, in plain words: it holds nothing that the user may not see."""


class ToolLost(ToolFailed):
    """A call was started and its end is not known. Only an idempotent tool may be run again."""


class ToolSource(Protocol):
    """Where tools come from: the operator's functions, or one MCP server."""

    def offered(self) -> tuple[ServerTool, ...]:
        """What is there now, by name. The same object as before where nothing changed."""
        ...

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Runs one call to its end. Raises ToolFailed. Cancelling the task cancels the call."""
        ...

    def running(self) -> AbstractAsyncContextManager[object]:
        """The source at work, for as long as the context is open."""
        ...
