"""Calls of server tools: run in their slots, with a timeout and with progress."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from threading import Lock

import msgspec
import structlog

from sessions.limits.slots import FairSlots, Slot
from sessions.tools.tool_registry import (
    REASON_BYTES,
    RESULT_BYTES,
    CallContext,
    Progress,
    ToolFailed,
    ToolLost,
    cut_to,
)

MOST_WAITING = 256
"""Calls that may wait for a slot. Further ones are refused."""
GOODBYE_S = 1.0
"""How long running calls have to end when their source ends."""
INTERVAL_S = 0.25
"""Seconds between two reports."""
PROGRESS_CHARS = 200
_log = structlog.get_logger("midstream.tools")


class Calls:
    """The calls of one source, in its slots, fairly between owners. `result_bytes`: the most bytes of a result; a longer one is cut."""

    def __init__(self, slots: FairSlots, *, result_bytes: int = RESULT_BYTES) -> None:
        self._slots = slots
        self._result_bytes = result_bytes
        self._tasks: set[asyncio.Task[str]] = set()
        self._waiting = 0

    async def run(self, tool: str, work: Work, context: CallContext, *, limit_s: float) -> str:
        """Do the work and return its result. `limit_s`: seconds, including the wait for a slot.

        Raises ToolFailed, and ToolLost if the time is up while the tool runs. A cancelled caller does not wait for the tool's
        end.
        """
        begun: list[asyncio.Task[str]] = []
        try:
            async with asyncio.timeout(limit_s):
                call = LiveCall(context, slot=await self._slot(context.owner))
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

    async def _slot(self, owner: str) -> CallSlot:
        """Wait for a slot. Raises ToolFailed if too many calls wait already."""
        if (slot := self._slots.take_nowait(owner)) is None:
            if self._waiting >= MOST_WAITING:
                raise ToolFailed("Too many tool calls are waiting. This one was not run.")
            self._waiting += 1
            try:
                slot = await self._slots.take(owner)
            finally:
                self._waiting -= 1
        return CallSlot(self._slots, slot)

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
    """Return what the model learns of an exception: its type. The message may quote addresses, paths and passwords."""
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


class LiveCall:
    """A call whose tool runs. `context`: the context for the tool."""

    def __init__(self, context: CallContext, *, slot: CallSlot) -> None:
        self.slot = slot
        self._feed = ProgressFeed(context.progress)
        self.context = msgspec.structs.replace(context, progress=self._feed.report)

    def close(self) -> None:
        """End the call, since nobody waits for it: later progress is ignored."""
        self._feed.close()


Work = Callable[[LiveCall], Awaitable[str]]


class CallSlot:
    """The slot of a call. It is free again when all its holders have released it."""

    def __init__(self, slots: FairSlots, slot: Slot) -> None:
        self._slots = slots
        self._slot = slot
        self._holders = 1

    def hold(self) -> None:
        """Keep the slot for one more holder, such as a thread that outlives its call."""
        self._holders += 1

    def release(self) -> None:
        """Release one hold. Call it as often as the slot is held."""
        self._holders -= 1
        if self._holders == 0:
            self._slots.release(self._slot)


class ProgressFeed:
    """Takes reports from any thread, and passes the newest on in the event loop. Create it in the loop."""

    def __init__(self, on_progress: Callable[[Progress], None], *, interval_s: float = INTERVAL_S) -> None:
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._newest: Progress | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False
        self._closed = False

    def report(self, progress: Progress) -> None:
        """Report how far the call is. Returns at once."""
        with self._lock:
            self._newest = progress
            if self._waiting or self._closed:
                return
            self._waiting = True
            self._loop.call_soon_threadsafe(self._arm)

    def close(self) -> None:
        """Ignore all later reports. Call it in the loop."""
        with self._lock:
            self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if not self._closed:
            self._timer = self._loop.call_at(max(self._due, self._loop.time()), self._flush)

    def _flush(self) -> None:
        with self._lock:
            newest, self._waiting = self._newest, False
        self._due = self._loop.time() + self._interval_s
        if newest is not None and (shown := plain(newest)) is not None:
            self._on_progress(shown)


def plain(progress: Progress) -> Progress | None:
    """Return a report as it may be shown; None if it has no valid number."""
    if not math.isfinite(progress.done):
        return None
    total = progress.total if progress.total is not None and math.isfinite(progress.total) else None
    message = progress.message.encode("utf-8", "replace").decode()[:PROGRESS_CHARS]
    return Progress(done=progress.done, total=total, message=message)
