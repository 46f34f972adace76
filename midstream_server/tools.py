"""All that a function which models may call needs to import (docs/tools.md)."""

from sessions.tools.functions.declared import (
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
