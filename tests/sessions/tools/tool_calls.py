"""Calls of tools as a turn makes them, and boxes of functions to call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from sessions.tools.function_tools import FunctionTool, FunctionTools
from sessions.tools.tool_registry import Answer, CallContext, Elicitation, Progress, ToolRegistry


def call_of(owner: str = "alice", call_id: str = "call_1", **more: Any) -> CallContext:
    """Whose call it is."""
    return CallContext(owner=owner, conversation="talk", call_id=call_id, **more)


def box_of(*functions: Callable[..., Any], **settings: Any) -> ToolRegistry:
    """A box of these functions."""
    return ToolRegistry([FunctionTools([FunctionTool(one) for one in functions], **settings)])


class User:
    """A user who is asked: each question waits until it is answered."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[tuple[Elicitation, asyncio.Future[Answer]]] = asyncio.Queue()

    async def elicit(self, elicitation: Elicitation) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.questions.put_nowait((elicitation, answer))
        return await answer

    async def answers(self, answer: Answer) -> Elicitation:
        """Answers the next question; gives it."""
        elicitation, waiting = await self.questions.get()
        waiting.set_result(answer)
        return elicitation


class Watcher:
    """Who sees the progress of a call."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[Progress] = asyncio.Queue()

    def __call__(self, progress: Progress) -> None:
        self.seen.put_nowait(progress)
