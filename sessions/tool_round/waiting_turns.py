"""Turns that wait for calls: until these are settled, also after the replica that began them is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import TypeVar

import msgspec
import structlog

from engine.messages import Request
from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation, ConversationRegistry, accepted_event
from sessions.errors import OwnershipLost, Refused, StoreDown, StoreFault
from sessions.events import Failure
from sessions.filters.chain import Filters
from sessions.observer import Observer
from sessions.records import Meta
from sessions.running.runner import close_orphaned
from sessions.store.history.codec import encode_message, encode_turn, now_ms
from sessions.store.history.history import Ending, History
from sessions.store.ownership import RunningTurn
from sessions.store.storage import Storage
from sessions.tool_round.tool_runner import CallStates, ToolRunner
from sessions.tools.tool_registry import ToolRegistry
from sessions.turn.message_request import GenerationConfig
from sessions.turn.policy import ToolLimits
from sessions.turn.prompt import (
    HistoryPromptBuilder,
    ModelRoute,
    Prompt,
    SystemPrompt,
    client_key,
    turn_request,
)
from sessions.turn.tool_calls import ToolCalls, cancelled, expired, expires_at
from sessions.turn.turn import NullSubscriber, Turn, WaitingTurn
from sessions.turn.turn_state import TurnMessageIds

COMEBACK_S = 60.0
"""How long the dead replica's clients have to come back, whatever grace period they asked for."""

Begin = Callable[[Conversation, Turn], None]

_log = structlog.get_logger("midstream.turns")


class Failover:
    """Takes turns over. `on_takeover` is called first, with what continues them.

    The id fences its writes. So writes of the other replica are refused if it only stalled.
    """

    def __init__(self, *, directory: ConversationRegistry, storage: Storage) -> None:
        self._directory = directory
        self._storage = storage
        self._history = storage.history
        self._begin: Begin | None = None

    def on_takeover(self, begin: Begin) -> None:
        """Set what is called with each turn that waits here from now on."""
        self._begin = begin

    async def take_over(self, orphan: RunningTurn) -> bool:
        """Take over a turn that waits for calls; False if no turn of this id waits any more. Raises StoreDown."""
        with self._directory.using(orphan.owner, orphan.conversation_id) as conversation:
            kept = await self._history.following(conversation.keys)
            following = None if kept is None else WaitingTurn.decoded(kept)
            if following is None or following.turn_id != orphan.turn_id:
                return False
            return await self._take_over(conversation, following)

    async def _take_over(self, conversation: Conversation, old: WaitingTurn) -> bool:
        new = _renamed(old, conversation)
        await self._storage.register_turn(conversation.owner, conversation.conversation_id, new.turn_id)
        named = new.encoded()
        watched = await self._history.continue_turn(
            conversation.keys, old.turn_id, next_id=new.turn_id, following=named
        )
        if watched is None:
            await self._storage.ownership.discard(new.turn_id)
            return False
        message = await self._history.message(conversation.keys, new.message_id)
        meta = await self._history.load(conversation.keys) or Meta.new("")
        await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        live = Turn.waiting(new, ToolCalls(message.calls if message is not None else ()), NullSubscriber())
        conversation.continue_turn(live, seq=meta.seq, watched=watched)
        _log.info("waiting turn taken over", turn_id=new.turn_id, follows=new.follows)
        if self._begin is None:
            raise RuntimeError("Nothing begins turns here.")
        self._begin(conversation, live)
        await self._end_queue(conversation, live, meta.queue)
        return True

    async def _end_queue(self, conversation: Conversation, live: Turn, queue: Sequence[str]) -> None:
        """End the turns that were queued in the dead replica's memory: nobody else knows what they asked for."""
        for place, turn_id in enumerate(queue, start=1):
            if (record := await self._history.turn(conversation.keys, turn_id)) is None:
                continue
            base = await self._history.base(conversation.keys, record)
            async with conversation.order_lock:
                if live.journal is None or live.end is not None:
                    return  # the reaper ends them after it
                seq = conversation.next_seq()
                ending = close_orphaned(conversation.conversation_id, record, (), seq=seq, base=base)
                saved = await live.journal.write(ending.done, _exit(ending, " ".join(queue[place:])))
                done = ending.done
                conversation.publish_done(done if saved else msgspec.structs.replace(done, saved=False))
                live.tool_round.news.set()  # what the store does not take now is written later


def _exit(ending: Ending, queue: str) -> bytes:
    """Return what else the store changes when a turn ends in the queue."""
    turn = ending.turn
    patch: dict[str, list[str]] = {
        "set": ["queue", queue],
        "ended": [turn.turn_id, encode_turn(turn).decode()],
    }
    if not ending.stays:
        patch["reply"] = [turn.message_id, turn.reply_id, encode_message(ending.reply).decode()]
    return msgspec.json.encode(patch)


def _renamed(old: WaitingTurn, conversation: Conversation) -> WaitingTurn:
    send = msgspec.structs.replace(
        old.send,
        conversation_id=conversation.conversation_id,
        grace_s=max(old.send.grace_s, COMEBACK_S),
    )
    return msgspec.structs.replace(old, turn_id=TurnMessageIds.new().turn_id, send=send)


AGAIN_S = 1.0

T = TypeVar("T")


class WaitingTurns:
    """Brings turns that follow calls to the point where they may run.

    It can't be refused any more: if it can't run, its end says why. If its end is decided before, its open calls are
    cancelled first.
    """

    def __init__(
        self,
        *,
        history: History,
        prompts: HistoryPromptBuilder,
        call_states: CallStates,
        box: ToolRegistry,
        filters: Filters,
        limits: ToolLimits,
        observer: Observer,
        is_draining: Callable[[], bool],
    ) -> None:
        self._history = history
        self._prompts = prompts
        self._call_states = call_states
        self._box = box
        self._filters = filters
        self._limits = limits
        self._observer = observer
        self._is_draining = is_draining

    async def next(self, conversation: Conversation, live: Turn) -> Request:
        """Return what is to run, once all calls are settled or the end is decided. Raises OwnershipLost."""
        try:
            await self._until_settled(conversation, live)
            live.begin_reply()
            return await self._accepted(conversation, live)
        except StoreFault as fault:  # its end says so
            return self.given_up(conversation, live, Failure(code=fault.code, message=str(fault)))

    def given_up(self, conversation: Conversation, live: Turn, failure: Failure) -> Request:
        """Return the request of a turn that can't run; its end says why."""
        live.failure = failure
        if live.tool_round.awaited is not None:
            for call in live.tool_round.awaited.open:
                live.tool_round.awaited.put(cancelled(call))
        if live.turn.accepted_at is None:
            live.turn.accept(now=monotonic())
        return self._request(conversation, live, None, SystemPrompt("", ""), ModelRoute(live.record.model))

    async def _until_settled(self, conversation: Conversation, live: Turn) -> None:
        runs = ToolRunner(
            conversation,
            live,
            box=self._box,
            call_states=self._call_states,
            filters=self._filters,
            observer=self._observer,
            wait_s=self._limits.wait_s,
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
        finally:
            runs.end()
        await self._call_states.cancel_all(conversation, live)
        if self._is_draining() and not live.turn.is_over:
            await asyncio.Event().wait()  # another replica continues it, or this one after its restart

    async def _watch(
        self, conversation: Conversation, live: Turn, start_ready: Callable[[], Awaitable[None]]
    ) -> None:
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
            await start_ready()
            due = [at for call in awaited.open if (at := expires_at(call)) is not None]
            due += [] if is_kept else [now + int(AGAIN_S * 1000)]
            await _first(
                live.tool_round.news, live.engine.stopping, within_ms=min(due) - now if due else None
            )

    async def _accepted(self, conversation: Conversation, live: Turn) -> Request:
        """Accept the turn, which has its place already. Raises OwnershipLost, StoreFault."""
        meta = await self._lasting(partial(self._history.load, conversation.keys)) or Meta.new("")
        system = self._prompts.system(meta, self._generation(live))
        prompt = await self._prompt(conversation, live, meta)
        requested = live.record.model
        answering = self._prompts.choice.answering(requested, prompt.model if prompt else requested)
        async with conversation.order_lock:
            live.choose(answering.model)
            await self._write(conversation, live, prompt.context_from if prompt else meta.context_from)
        return self._request(conversation, live, prompt, system, answering)

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
        message = await self._lasting(
            partial(self._history.message, conversation.keys, live.record.message_id)
        )
        if message is None:
            live.failure = Failure(code="internal", message="The store no longer has this reply.")
        is_given = live.tool_round.generation.given is not None
        if message is None or live.turn.is_over or live.tool_round.awaited is None or is_given:
            return None
        making = self._prompts.prompt(
            conversation.keys,
            msgspec.structs.replace(message, calls=live.tool_round.awaited.records),
            self._generation(live),
            meta,
            requested=live.record.model,
            client=client_key(conversation.owner, live.send.group),
        )
        try:
            return await live.engine.in_time(making)
        except StoreFault:
            raise
        except Refused as refused:  # too late to refuse it: its end says why
            live.failure = Failure(
                code=refused.code, message=str(refused), retry_after_ms=refused.retry_after_ms
            )
        return None

    @staticmethod
    async def _lasting(read: Callable[[], Awaitable[T]]) -> T:
        """Read from the store, and wait while it does not answer. Raises StoreFault."""
        while True:
            try:
                return await read()
            except StoreFault:
                raise
            except StoreDown:
                await asyncio.sleep(AGAIN_S)

    def _generation(self, live: Turn) -> GenerationConfig:
        tool_round = live.tool_round
        return tool_round.generation.in_round(
            tool_round.round, at_most=self._limits.max_rounds, is_requested=tool_round.then is not None
        )

    def _request(
        self,
        conversation: Conversation,
        live: Turn,
        prompt: Prompt | None,
        system: SystemPrompt,
        answering: ModelRoute,
    ) -> Request:
        return turn_request(
            conversation.owner,
            live,
            prompt,
            self._generation(live),
            system,
            answering=answering,
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


async def _first(*events: asyncio.Event, within_ms: int | None) -> None:
    """Wait until one of the events is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    within_s = None if within_ms is None else max(within_ms, 0) / 1000
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=within_s)
    finally:
        for wait in waits:
            wait.cancel()
