"""Declares a function as a tool, with options. Operators import all of this from `midstream_server.tools`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import msgspec

from sessions.tools.server_tool import (
    Accepted,
    Approval,
    CallContext,
    Declined,
    Dismissed,
    Elicitation,
    Progress,
    ToolFailed,
    ToolLost,
)

__all__ = [
    "Accepted",
    "CallContext",
    "Declined",
    "Dismissed",
    "Elicitation",
    "Progress",
    "ToolFailed",
    "ToolLost",
    "tool",
]

Function = TypeVar("Function", bound=Callable[..., Any])
_MARK = "__midstream_tool__"


class ToolDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a declaration. None: as the function or the settings say."""

    name: str | None = None
    description: str | None = None
    approval: Approval = Approval.NEVER
    idempotent: bool = False
    timeout_s: float | None = None


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Literal["never", "always"] = "never",
    idempotent: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Function], Function]: ...
def tool(function: Any = None, /, *, approval: Literal["never", "always"] = "never", **options: Any) -> Any:
    """Declare a function as a tool. Without a declaration it is a tool with these defaults.

    `name`, `description`: instead of the function's own. `approval`: whether a user has to allow each call.
    `idempotent`: a call with an unknown outcome may be run again. `timeout_s`: seconds that a call may take.
    """
    declared = ToolDeclaration(approval=Approval(approval), **options)

    def declare(one: Function) -> Function:
        setattr(one, _MARK, declared)
        return one

    return declare if function is None else declare(function)


def declaration_of(function: object) -> ToolDeclaration:
    """Return the declaration of a function."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, ToolDeclaration) else ToolDeclaration()
