"""The imports that a function needs which models may call (docs/tools.md)."""

from sessions.tools.functions.declaration import (
    Accepted,
    CallContext,
    Declined,
    Dismissed,
    Elicitation,
    Progress,
    ToolFailed,
    ToolLost,
    tool,
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
