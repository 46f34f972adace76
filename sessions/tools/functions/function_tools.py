"""The operator's functions as a source of tools, and the limit of how many run at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sessions.tools.calls import Calls
from sessions.tools.functions.function_tool import FunctionTool
from sessions.tools.result_text import RESULT_BYTES
from sessions.tools.server_tool import CallContext, ServerTool
from sessions.tools.slots import Slots

LIMIT_S = 30.0
"""Seconds of a call, if neither the function nor the operator sets them."""
THREADS = 32
OWNERS_THREADS = 8
"""Threads of one owner; a thread counts until its function returns, even if nobody waits for it."""
WAITING = 256
OWNERS_WAITING = 16
"""The same for functions that run on the event loop."""


class FunctionTools:
    """A source whose tools never change. `limit_s`: seconds of a call; `result_bytes`: of its result."""

    def __init__(
        self,
        tools: Sequence[FunctionTool],
        *,
        limit_s: float = LIMIT_S,
        result_bytes: int = RESULT_BYTES,
        threads: Slots | None = None,
    ) -> None:
        self._tools = {one.tool.name: one for one in tools}
        self._offered = tuple(self._tools[name].tool for name in sorted(self._tools))
        self._limit_s = limit_s
        self._in_threads = Calls(
            threads or Slots(total=THREADS, each=OWNERS_THREADS), result_bytes=result_bytes
        )
        self._on_loop = Calls(Slots(total=WAITING, each=OWNERS_WAITING), result_bytes=result_bytes)

    def offered(self) -> tuple[ServerTool, ...]:
        """Return the tools by name."""
        return self._offered

    async def run(self, name: str, arguments: dict[str, Any], context: CallContext) -> str:
        """Run one call. Raises ToolFailed."""
        tool = self._tools[name]
        calls = self._on_loop if tool.waits else self._in_threads
        return await calls.run(
            name,
            lambda call: tool.run(arguments, call),
            context,
            limit_s=self._limit_s if tool.timeout_s is None else tool.timeout_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the context lasts. At its end calls are cancelled; threads that do not end are left behind."""
        try:
            yield
        finally:
            await self._on_loop.end()
            await self._in_threads.end()
