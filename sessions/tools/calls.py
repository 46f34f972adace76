"""Runs each call as a task. Its caller may leave at any moment, waits a limited time, and gets a bounded result."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import structlog

from sessions.tools.live_call import LiveCall
from sessions.tools.pausable_timeout import PausableTimeout
from sessions.tools.result_text import REASON_BYTES, RESULT_BYTES, cut_to
from sessions.tools.server_tool import CallContext, ToolFailed, ToolLost
from sessions.tools.slots import Slots

GOODBYE_S = 1.0
"""How long running calls have to end when their source ends."""

_log = structlog.get_logger("midstream.tools")

Work = Callable[[LiveCall], Awaitable[str]]


class Calls:
    """The calls of one source. `result_bytes`: of a result; a longer one is cut."""

    def __init__(self, slots: Slots, *, result_bytes: int = RESULT_BYTES) -> None:
        self._slots = slots
        self._result_bytes = result_bytes
        self._tasks: set[asyncio.Task[str]] = set()

    def __len__(self) -> int:
        """The number of calls that have not ended, also those that nobody waits for."""
        return len(self._tasks)

    async def run(self, tool: str, work: Work, context: CallContext, *, limit_s: float) -> str:
        """Do the work and return its result. `limit_s`: seconds, with the wait for a place.

        Raises ToolFailed, and ToolLost if the time is up while it runs. A cancelled caller does not wait for its end.
        """
        time_limit = PausableTimeout(limit_s)
        begun: list[asyncio.Task[str]] = []
        try:
            async with time_limit.lasting():
                call = LiveCall(context, slot=await self._slots.take(context.owner), time_limit=time_limit)
                begun.append(self._begin(tool, work, call))
                try:
                    await asyncio.wait(begun)
                finally:
                    call.close()
                    begun[0].cancel()
        except TimeoutError:
            raise _too_late(limit_s, ran=bool(begun)) from None
        return self._result(begun[0])

    async def end(self) -> None:
        """Cancel running calls, and wait a moment for their ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GOODBYE_S)

    def _begin(self, tool: str, work: Work, call: LiveCall) -> asyncio.Task[str]:
        task = asyncio.ensure_future(_worked(tool, work, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: call.slot.release())
        task.add_done_callback(lambda done: _note(tool, done))
        return task

    def _result(self, task: asyncio.Task[str]) -> str:
        if task.cancelled():
            raise ToolFailed("The tool cancelled itself.")
        return cut_to(task.result(), self._result_bytes)


async def _worked(tool: str, work: Work, call: LiveCall) -> str:
    """Do the work. Whatever it raises becomes a ToolFailed with a text for the model."""
    try:
        return await work(call)
    except ToolLost as failure:
        raise ToolLost(cut_to(str(failure), REASON_BYTES)) from failure
    except ToolFailed as failure:
        raise ToolFailed(cut_to(str(failure), REASON_BYTES)) from failure
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the border of others' code
        raise _failure(tool, error) from None


def _failure(tool: str, error: BaseException) -> ToolFailed:
    """Return what the model is told of an exception: its type. Its message may quote addresses, paths and passwords."""
    incident = secrets.token_hex(4)
    _log.error("tool failed", tool=tool, incident=incident, exc_info=error)
    return ToolFailed(f"The tool failed with {type(error).__name__}. The server's log has it as {incident}.")


def _too_late(limit_s: float, *, ran: bool) -> ToolFailed:
    if ran:
        return ToolLost(
            f"The tool did not answer within {limit_s:g} s. It is not known whether it did its work."
        )
    return ToolFailed(f"Too many tool calls were running. This one was not started within {limit_s:g} s.")


def _note(tool: str, task: asyncio.Task[str]) -> None:
    """Log how a call ended, even if nobody waits for it."""
    outcome = "cancelled" if task.cancelled() else "failed" if task.exception() else "done"
    _log.info("tool called", tool=tool, outcome=outcome)
