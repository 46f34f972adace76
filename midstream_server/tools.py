"""The imports for functions that models may call (docs/tools.md)."""

from sessions.tools.function_tools import tool
from sessions.tools.tool_registry import CallContext, Progress, ToolFailed, ToolLost

__all__ = [
    "CallContext",
    "Progress",
    "ToolFailed",
    "ToolLost",
    "tool",
]
