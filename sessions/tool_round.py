"""The time between a reply's calls and the turn that follows them: turns that wait, and the server tools that run meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from functools import partial
from time import monotonic

import msgspec
import structlog

from engine.messages import Request
from sessions.conversation.conversation import Conversation, accepted_event
from sessions.errors import Filtered, OwnershipLost, Refused, StoreDown, StoreFault
from sessions.events import CallState, Failure, Status
from sessions.filters.chain import Filters
from sessions.limits.shares import Admission
from sessions.observer import Observer
from sessions.records import CallRecord, Meta
from sessions.store.codec import encode_call, encode_turn, now_ms
from sessions.store.history import LATE, History
from sessions.store_errors import AGAIN_S, until_answered
from sessions.tools.tool_registry import CallContext, Progress, ToolFailed, ToolLost, ToolRegistry
from sessions.turn.message_request import GenerationConfig
from sessions.turn.policy import Policy
from sessions.turn.prompt import HistoryPromptBuilder, Prompt
from sessions.turn.tool_calls import (
    RESULTS_CHARS,
    CallAnswer,
    Result,
    ToolCalls,
    cancelled,
    claimed,
    done,
    expired,
    expires_at,
    is_runnable,
    lost,
)
from sessions.turn.turn import Turn, first_of

PROGRESS_DIGITS = 3
_log = structlog.get_logger("midstream.turns")
_tool_log = structlog.get_logger("midstream.tools")
Change = Callable[[CallRecord], CallRecord]


class WaitingTurns:
    """Brings turns that follow calls to the point where they may run.

    Such a turn can't be refused any more: if it can't run, its end says why. If its end is decided before, its open calls are
    cancelled first.
    """

    def __init__(
        self,
        *,
        history: History,
        prompts: HistoryPromptBuilder,
        call_states: CallStates,
        box: ToolRegistry,
        policy: Policy,
        observer: Observer,
        admission: Admission,
    ) -> None:
        self._history = history
        self._prompts = prompts
        self._call_states = call_states
        self._box = box
        self._filters = policy.filters
        self._limits = policy.tools
        self._observer = observer
        self._admission = admission

    async def next(self, conversation: Conversation, live: Turn) -> Request:
        """Return what is to run, once all calls are settled or the end is decided. Raises OwnershipLost."""
        try:
            await self._until_settled(conversation, live)
            live.begin_reply()
            return await self._accepted(conversation, live)
        except StoreFault as fault:  # its end says so
            return self.given_up(conversation, live, Failure.of(fault))

    def given_up(self, conversation: Conversation, live: Turn, failure: Failure) -> Request:
        """Return the request of a turn that can't run; its end says why."""
        live.failure = failure
        if live.tool_round.awaited is not None:
            for call in live.tool_round.awaited.open:
                live.tool_round.awaited.put(cancelled(call))
        if live.turn.accepted_at is None:
            live.turn.accept(now=monotonic())
        return self._prompts.request(conversation.keys, live, None, self._generation(live), Meta.new(""))

    async def _until_settled(self, conversation: Conversation, live: Turn) -> None:
        runs = ToolRunner(
            conversation,
            live,
            box=self._box,
            call_states=self._call_states,
            filters=self._filters,
            observer=self._observer,
        )
        await runs.recover()
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._watch(conversation, live, partial(runs.start_ready, tasks))
                if live.turn.is_over:
                    raise _Stopped
        except ExceptionGroup as several:  # of a tool's task, or of this one; the first one is reported
            for one in several.exceptions:
                if not isinstance(one, _Stopped):
                    raise one from None
        await self._call_states.cancel_all(conversation, live)
        if self._admission.draining and not live.turn.is_over:
            await asyncio.Event().wait()  # another replica continues it, or this one after its restart

    async def _watch(self, conversation: Conversation, live: Turn, start_ready: Callable[[], None]) -> None:
        """Wait until no call is open, or the end is decided; meanwhile run tools, expire calls, write the journal."""
        awaited = live.tool_round.awaited
        while awaited is not None and awaited.open and not live.turn.is_over:
            live.tool_round.news.clear()
            if live.tool_round.is_lost:
                raise OwnershipLost(live.record.turn_id)
            is_kept = await self._call_states.catch_up(conversation, live)
            now = now_ms()
            for call in awaited.open:
                await self._call_states.change(conversation, live, call.call_id, partial(expired, now_ms=now))
            start_ready()
            due = [at for call in awaited.open if (at := expires_at(call)) is not None]
            due += [] if is_kept else [now + int(AGAIN_S * 1000)]
            within_s = max(min(due) - now, 0) / 1000 if due else None
            await first_of(live.tool_round.news, live.engine.stopping, within_s=within_s)

    async def _accepted(self, conversation: Conversation, live: Turn) -> Request:
        """Accept the turn, which has its place already. Raises OwnershipLost, StoreFault."""
        meta = await until_answered(partial(self._history.load, conversation.keys)) or Meta.new("")
        prompt = await self._prompt(conversation, live, meta)
        async with conversation.order_lock:
            await self._write(conversation, live, prompt.context_from if prompt else meta.context_from)
        return self._prompts.request(conversation.keys, live, prompt, self._generation(live), meta)

    async def _write(self, conversation: Conversation, live: Turn, context_from: str | None) -> None:
        if live.journal is None:
            raise RuntimeError("The turn was not made ready.")
        live.record = msgspec.structs.replace(live.record, accepted_seq=conversation.next_seq())
        event = accepted_event(conversation, live.record, live.send, conversation.published.epoch)
        await live.journal.write(event, _entry(live, context_from))
        live.turn.accept(now=monotonic())
        live.fallback = live.record.fallback
        conversation.publish_accepted(live, event)

    async def _prompt(self, conversation: Conversation, live: Turn, meta: Meta) -> Prompt | None:
        message = await until_answered(
            partial(self._history.message, conversation.keys, live.record.message_id)
        )
        if message is None:
            live.failure = Failure(code="internal", message="The store no longer has this reply.")
        is_given = live.tool_round.generation.given is not None
        if message is None or live.turn.is_over or live.tool_round.awaited is None or is_given:
            return None
        message = msgspec.structs.replace(message, calls=live.tool_round.awaited.records)
        try:
            return await self._prompts.prompt(conversation.keys, live, message, self._generation(live), meta)
        except StoreFault:
            raise
        except Refused as refused:  # too late to refuse it: its end says why
            live.failure = Failure.of(refused)
        return None

    def _generation(self, live: Turn) -> GenerationConfig:
        tool_round = live.tool_round
        return tool_round.generation.in_round(
            tool_round.round, at_most=self._limits.max_rounds, is_requested=tool_round.then is not None
        )


class _Stopped(Exception):
    """The turn's end is decided: tools that run for it are stopped."""


def _entry(live: Turn, context_from: str | None) -> bytes:
    """Return what else the store changes when a waiting turn is accepted."""
    record = live.record
    fields = [f"turn:{record.turn_id}", encode_turn(record).decode(), "updated_at", str(now_ms())]
    if context_from is not None:
        fields += ["context_from", context_from]
    return msgspec.json.encode({"set": fields, "unset": ["follow"]})


class ToolRunner:
    """Runs one turn's calls here. `start_ready` starts those that may start, as tasks of a group.

    Each call is claimed in the store once, before it starts. A claim names the replica that made it. If that replica dies, only
    a tool that is declared idempotent runs again; otherwise the call is lost, and the model is informed.
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
    ) -> None:
        self._conversation = conversation
        self._live = live
        self._box = box
        self._call_states = call_states
        self._filters = filters
        self._observer = observer
        self._begun: set[str] = set()

    async def recover(self) -> None:
        """Recover or give up calls that a dead replica had started. Raises OwnershipLost, StoreFault."""
        for call in self._open():
            if call.state is CallState.RUNNING and call.where == "server" and not self._is_mine(call):
                tool = self._box.tool(call.name)
                again = partial(claimed, runner=self._call_states.replica)
                await self._change(call.call_id, again if tool is not None and tool.idempotent else lost)

    def start_ready(self, tasks: asyncio.TaskGroup) -> None:
        """Start all calls that wait for nobody or were allowed."""
        for call in self._open():
            may_run = is_runnable(call) or (call.state is CallState.RUNNING and self._is_mine(call))
            if may_run and call.call_id not in self._begun:
                self._begun.add(call.call_id)
                tasks.create_task(self._run(call))

    def _open(self) -> tuple[CallRecord, ...]:
        awaited = self._live.tool_round.awaited
        return awaited.open if awaited is not None else ()

    def _is_mine(self, call: CallRecord) -> bool:
        return call.where == "server" and call.runner == self._call_states.replica

    async def _run(self, call: CallRecord) -> None:
        """Run a call to its end, once its claim is certain. Raises OwnershipLost, StoreFault."""
        with self._live.tool_round.running_tool():
            if call.state is CallState.WAITING:
                claim = await self._change(call.call_id, partial(claimed, runner=self._call_states.replica))
                if claim is None:  # it changed meanwhile
                    return
                call = claim
            await self._call_states.until_certain(self._conversation, self._live)
            begun = monotonic()
            change, failure = await self._outcome(call)
            is_known = self._live.tool_round.generation.offered(call.name) is not None
            name = call.name if is_known else "unknown"  # a name that the model made up is content
            self._observer.tool_ended(name, call.call_id, monotonic() - begun, failure)
            saving = self._change(call.call_id, change)
            await asyncio.shield(saving)  # a drain cancels no result that is being saved

    async def _change(self, call_id: str, change: Change) -> CallRecord | None:
        return await self._call_states.change(self._conversation, self._live, call_id, change)

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
        except Exception:  # noqa: BLE001 - see above
            incident = secrets.token_hex(4)
            _tool_log.exception("tool failed", tool=call.name, incident=incident)
            error_text = f"The tool failed with an internal error, number {incident}."
            return partial(done, error=error_text), "internal"
        return partial(done, content=content), None

    async def _result(self, call: CallRecord) -> str:
        """Return the result. Raises ToolFailed."""
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
            raise ToolFailed(f"The results of one reply may have at most {RESULTS_CHARS} characters.")
        return content

    def _context(self, call: CallRecord) -> CallContext:
        owner = hashlib.sha256(str(self._conversation.owner).encode()).hexdigest()
        return CallContext(
            owner=owner,
            conversation=self._conversation.conversation_id,
            call_id=call.call_id,
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


class AnswerOutcome(msgspec.Struct, frozen=True):
    """The outcome of an answer. `already`: it was sent before."""

    state: CallState
    already: bool


class CallStates:
    """Changes the calls of turns that run or wait here. `replica`: this one, named as the runner of its calls."""

    def __init__(self, history: History, *, replica: str) -> None:
        self._history = history
        self.replica = replica

    async def answer(
        self, conversation: Conversation, live: Turn, answer: CallAnswer
    ) -> AnswerOutcome | None:
        """Take a client's answer; None if the turn with the call is about to end: then look again after its end.

        Raises Conflict, ContentTooLong, OwnershipLost; StoreDown if the answer may or may not be stored: it may be sent again.
        """
        term = self._history.term
        async with conversation.order_lock:
            # earlier events may include this answer
            if _accepting_calls(live, answer) is not None and not await self._write_rest(live):
                raise StoreDown(LATE)
            if (calls := _accepting_calls(live, answer)) is None:
                return None
            moved = calls.answered(answer, runner=self.replica)
            is_news = moved != calls.get(answer.call_id)
            then = answer.then if isinstance(answer, Result) else None
            if is_news and not await self._move(conversation, live, calls, moved, then=then):
                raise StoreDown(LATE)
        await self._history.confirm_in_time(conversation.keys, term=term)
        return AnswerOutcome(moved.state, already=not is_news)

    async def catch_up(self, conversation: Conversation, live: Turn) -> bool:
        """Write what is not stored yet; return whether all is stored. Raises OwnershipLost, StoreFault."""
        async with conversation.order_lock:
            return await self._write_rest(live)

    @staticmethod
    async def _write_rest(live: Turn) -> bool:
        return live.journal is None or await live.journal.catch_up()

    async def change(
        self, conversation: Conversation, live: Turn, call_id: str, change: Change
    ) -> CallRecord | None:
        """Change an open call and return it; None if it is settled, or the change leaves it as it is.

        Raises OwnershipLost, StoreFault.
        """
        async with conversation.order_lock:
            calls = live.tool_round.of(call_id)
            call = calls.get(call_id) if calls is not None else None
            if calls is None or call is None or call.state.is_settled or (moved := change(call)) == call:
                return None
            await self._move(conversation, live, calls, moved)
            return calls.get(call_id)

    async def cancel_all(self, conversation: Conversation, live: Turn) -> None:
        """Cancel all awaited calls that are open. Raises OwnershipLost, StoreFault."""
        for call in live.tool_round.awaited.open if live.tool_round.awaited is not None else ():
            await self.change(conversation, live, call.call_id, cancelled)

    async def until_certain(self, conversation: Conversation, live: Turn) -> None:
        """Wait until all writes of a turn are durable enough. Raises OwnershipLost, StoreFault."""
        while live.journal is not None:
            term = self._history.term
            try:
                await live.journal.write_rest()
                await self._history.confirm(conversation.keys, term=term)
            except StoreFault:
                raise
            except StoreDown:
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _move(
        self,
        conversation: Conversation,
        live: Turn,
        calls: ToolCalls,
        moved: CallRecord,
        *,
        then: GenerationConfig | None = None,
    ) -> bool:
        """Journal and publish a change; return whether it is stored. If not, it is written with later ones."""
        if live.journal is None:
            raise RuntimeError("The turn has no journal.")
        live.tool_round.then = then or live.tool_round.then
        moved = msgspec.structs.replace(moved, state_seq=conversation.next_seq())
        calls.put(moved)
        turn_id = live.record.follows if calls is live.tool_round.awaited else live.record.turn_id
        event = moved.moved(conversation_id=conversation.conversation_id, turn_id=turn_id)
        if event is None:
            raise RuntimeError("The call did not move.")
        try:
            is_saved = await live.journal.write(event, _patch(moved, live) if live.waits else b"")
        except StoreFault:
            conversation.publish_control(event)  # the reader knows as much as this replica
            raise
        conversation.publish_control(event)
        live.tool_round.news.set()
        return is_saved


def _patch(call: CallRecord, live: Turn) -> bytes:
    """Return what else the store changes: a call of an ended reply, and the options of the turn that waits for it."""
    fields = [f"call:{call.call_id}", encode_call(call).decode()]
    if live.tool_round.then is not None:
        fields += ["follow", live.following().encoded().decode()]
    return msgspec.json.encode({"set": fields})


def _accepting_calls(live: Turn, answer: CallAnswer) -> ToolCalls | None:
    """Return the calls that include an answer's call; None if they take no answers any more."""
    return None if live.turn.is_over or live.journal is None else live.tool_round.of(answer.call_id)
