"""The interface of server tools: the context of a call, and how it may fail. Pure; knows neither functions nor MCP.

ToolFailed            the call failed; its message is for the model
└── ToolLost          it is not known whether the tool did its work
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Protocol

import msgspec

from engine.messages import Tool

NAME = r"[A-Za-z0-9_-]{1,64}"
"""Names of tools, as OpenAI's API has them."""


class Approval(Enum):
    """Whether a user has to allow each call before it is run."""

    NEVER = "never"
    ALWAYS = "always"


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the server runs. `name`: 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, unique in its box.

    `parameters`: the JSON Schema of an object, as text. `idempotent`: a call with an unknown outcome may be run again.
    `server`: the operator's name of its MCP server, empty for a function; `named_there`: the tool's name at that server.
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
        """The tool as the model sees it."""
        return Tool(name=self.name, description=self.description, parameters=self.parameters)


class Progress(msgspec.Struct, frozen=True):
    """The progress of a call, in the tool's own unit. `total`: None if unknown. `message` is for the user."""

    done: float
    total: float | None = None
    message: str = ""


class Elicitation(msgspec.Struct, frozen=True):
    """A tool's question to the user while it runs. `schema`: the JSON Schema of an object with plain members, as text.

    MCP's elicitation, form mode: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation
    """

    message: str
    schema: str


class Accepted(msgspec.Struct, frozen=True):
    """The user answered. `content`: an object that fits the elicitation's schema."""

    content: dict[str, Any]


class Declined(msgspec.Struct, frozen=True):
    """The user said no."""


class Dismissed(msgspec.Struct, frozen=True):
    """The user did not choose: looked away, left, or did not answer in time."""


Answer = Accepted | Declined | Dismissed
Elicit = Callable[[Elicitation], Awaitable[Answer]]


async def nobody_to_ask(_: Elicitation) -> Answer:
    """Answer for a call without a user."""
    return Dismissed()


def no_progress(_: Progress) -> None:
    """Ignore the progress of a call that nobody watches."""


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call it is. `owner`: an opaque digest of its owner; `call_id`: the same if the call is run again.

    A running tool awaits `elicit`; if that raises, the call fails. `progress` is called in the event loop, a few
    times a second at most, and returns at once.
    """

    owner: str
    conversation: str
    call_id: str
    elicit: Elicit = nobody_to_ask
    progress: Callable[[Progress], None] = no_progress


class ToolFailed(Exception):
    """A call failed. The message is for the model, in plain words, with nothing that the user may not see."""


class ToolLost(ToolFailed):
    """A call was started, and its outcome is not known. Only an idempotent tool may be run again."""


class ToolSource(Protocol):
    """A source of tools: the operator's functions, or one MCP server."""

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the current tools, by name; the same object as before if nothing changed."""
        ...

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Run a call to its end. Raises ToolFailed. Cancelling the task cancels the call."""
        ...

    def running(self) -> AbstractAsyncContextManager[object]:
        """Serve while the context is open."""
        ...
