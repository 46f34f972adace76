"""Runs server tools for a turn that waits for their calls. Each call is claimed in the store once, before it starts.

A claim names the replica that made it. If that replica dies, only a tool that is declared idempotent runs again;
otherwise the call is lost, and the model is told so.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from functools import partial
from time import monotonic

import msgspec
import structlog

from sessions.conversation.conversation import Conversation
from sessions.errors import Filtered, OwnershipLost, StoreFault
from sessions.events import CallState, Status
from sessions.filters.chain import Filters
from sessions.observer import Observer
from sessions.records import CallRecord
from sessions.tool_round.call_states import CallStates, Change
from sessions.tool_round.elicitation import Elicitations
from sessions.tools.server_tool import CallContext, Progress, ToolFailed, ToolLost
from sessions.tools.tool_registry import ToolRegistry
from sessions.turn.tool_calls import RESULTS_CHARS, claimed, done, is_runnable, lost
from sessions.turn.turn import Turn

PROGRESS_DIGITS = 3

_log = structlog.get_logger("midstream.tools")


class ToolRunner:
    """Runs one turn's calls here. `start_ready` starts those that may start, as tasks of a group.

    `wait_s`: seconds that a question waits for the user.
    """

    def __init__(
        self,
        conversation: Conversation,
        live: Turn,
        *,
        box: ToolRegistry,
        call_states: CallStates,
        filters: Filters,
        observer: Observer,
        wait_s: float,
    ) -> None:
        self._conversation = conversation
        self._live = live
        self._box = box
        self._call_states = call_states
        self._filters = filters
        self._observer = observer
        self._begun: set[str] = set()
        self._elicitations = Elicitations(
            conversation, live, call_states=call_states, filters=filters, wait_s=wait_s
        )

    async def recover(self) -> None:
        """Recover or give up calls that a dead replica had started. Raises OwnershipLost, StoreFault."""
        for call in self._open():
            if call.state is CallState.RUNNING and call.where == "server" and not self._is_mine(call):
                tool = self._box.tool(call.name)
                again = partial(claimed, runner=self._call_states.replica)
                await self._change(call, again if tool is not None and tool.idempotent else lost)

    async def start_ready(self, tasks: asyncio.TaskGroup) -> None:
        """Start all calls that wait for nobody or were allowed, and hand answers to the tools that asked.

        Raises OwnershipLost, StoreFault.
        """
        await self._elicitations.withdraw()
        self._elicitations.hand_over()
        for call in self._open():
            may_run = is_runnable(call) or (call.state is CallState.RUNNING and self._is_mine(call))
            if may_run and call.call_id not in self._begun:
                self._begun.add(call.call_id)
                tasks.create_task(self._run(call))

    def end(self) -> None:
        """Dismiss the questions of running tools."""
        self._elicitations.end()

    def _open(self) -> tuple[CallRecord, ...]:
        awaited = self._live.tool_round.awaited
        return awaited.open if awaited is not None else ()

    def _is_mine(self, call: CallRecord) -> bool:
        return call.where == "server" and call.runner == self._call_states.replica

    async def _run(self, call: CallRecord) -> None:
        """Run a call to its end, once its claim is certain. Raises OwnershipLost, StoreFault."""
        with self._live.tool_round.running_tool():
            if call.state is CallState.WAITING:
                claim = await self._change(call, partial(claimed, runner=self._call_states.replica))
                if claim is None:  # it changed meanwhile
                    return
                call = claim
            await self._call_states.until_certain(self._conversation, self._live)
            begun = monotonic()
            change, failure = await self._outcome(call)
            is_known = self._live.tool_round.generation.offered(call.name) is not None
            name = call.name if is_known else "unknown"  # a name that the model made up is content
            self._observer.tool_ended(name, call.call_id, monotonic() - begun, failure)
            await self._change(call, change)

    async def _change(self, call: CallRecord, change: Change) -> CallRecord | None:
        return await self._call_states.change(self._conversation, self._live, call.call_id, change)

    async def _outcome(self, call: CallRecord) -> tuple[Change, str | None]:
        """Return a call's outcome, and the kind of its failure. A task's boundary: an exception ends this call alone."""
        try:
            content = await self._result(call)
            await self._filters.check(content)
        except ToolLost as why:
            return partial(lost, why=str(why)), "tool_lost"
        except ToolFailed as why:
            return partial(done, error=str(why)), "tool_failed"
        except Filtered:
            return partial(done, error="A filter of this server holds the result back."), Filtered.code
        except (OwnershipLost, StoreFault):
            raise
        except Exception:  # noqa: BLE001 - see above
            incident = secrets.token_hex(4)
            _log.exception("tool failed", tool=call.name, incident=incident)
            error_text = f"The tool failed with an internal error, number {incident}."
            return partial(done, error=error_text), "internal"
        return partial(done, content=content), None

    async def _result(self, call: CallRecord) -> str:
        """Raise ToolFailed, or return the result."""
        if self._live.tool_round.generation.offered(call.name) is None:
            raise ToolFailed(f'There is no tool "{call.name}".')
        try:
            arguments = msgspec.json.decode(call.runs_with)
        except (msgspec.DecodeError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise ToolFailed("The arguments are not a JSON object.")
        content = await self._box.run(call.name, arguments, self._context(call))
        awaited = self._live.tool_round.awaited
        if awaited is not None and awaited.result_chars + len(content) > RESULTS_CHARS:
            raise ToolFailed(f"The results of one reply have {RESULTS_CHARS} characters at most.")
        return content

    def _context(self, call: CallRecord) -> CallContext:
        owner = hashlib.sha256(str(self._conversation.owner).encode()).hexdigest()
        return CallContext(
            owner=owner,
            conversation=self._conversation.conversation_id,
            call_id=call.call_id,
            elicit=partial(self._elicitations.ask, call.call_id),
            progress=partial(self._publish_progress, call),
        )

    def _publish_progress(self, call: CallRecord, progress: Progress) -> None:
        share = progress.done / progress.total if progress.total else None
        status = Status(
            conversation_id=self._conversation.conversation_id,
            turn_id=self._live.record.follows,
            state="tool",
            call_id=call.call_id,
            progress=None if share is None else round(min(max(share, 0.0), 1.0), PROGRESS_DIGITS),
            message=progress.message or None,
        )
        self._conversation.publish_status(self._live, status)
