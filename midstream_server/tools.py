"""The imports for functions that models may call (docs/tools.md)."""

from sessions.tools.function_tools import tool
from sessions.tools.tool_registry import (
    Accepted,
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
