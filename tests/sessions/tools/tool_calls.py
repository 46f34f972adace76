"""Calls of tools as a turn makes them, and boxes of functions to call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sessions.tools.function_tools import FunctionTool, FunctionTools
from sessions.tools.tool_registry import CallContext, Progress, ToolRegistry


def call_of(owner: str = "alice", call_id: str = "call_1", **more: Any) -> CallContext:
    """Whose call it is."""
    return CallContext(owner=owner, conversation="talk", call_id=call_id, **more)


def box_of(*functions: Callable[..., Any], **settings: Any) -> ToolRegistry:
    """A box of these functions."""
    return ToolRegistry([FunctionTools([FunctionTool(one) for one in functions], **settings)])


class Watcher:
    """Who sees the progress of a call."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[Progress] = asyncio.Queue()

    def __call__(self, progress: Progress) -> None:
        self.seen.put_nowait(progress)
