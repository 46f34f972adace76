"""A turn as it runs here, its wait for the engine, its subscribers, and what cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

from engine.api import Streamer
from sessions.errors import NotFound
from sessions.events import Cause, Done, Event, Failure, Journalled, Status, ToolCall, ToolState
from sessions.limits.shares import Admitted
from sessions.records import CallRecord, ContinuedReply, MessageRecord, TurnRecord
from sessions.store.journal import TurnJournal
from sessions.turn.interfaces import Player, Source
from sessions.turn.message_request import GenerationConfig, MessageRequest
from sessions.turn.tool_calls import ToolCalls
from sessions.turn.turn_state import TurnIds, TurnState

CONFIRM_S = 2.0
"""Seconds for the engine to confirm that it stopped."""

T = TypeVar("T")


class EngineWait:
    """A turn's wait for the engine. `stream`: the reply's, once requested; `stopping`: set once the turn has to end.

    `paced`: text is held back, for the reader's pace.
    """

    def __init__(self) -> None:
        self.stream: Streamer | None = None
        self.stopping = asyncio.Event()
        self.paced = False
        self._until: float | None = None
        self._limit: asyncio.Timeout | None = None

    async def in_time(self, output: Awaitable[T]) -> T | None:
        """Wait for a result; None if the engine does not confirm a stop in time."""
        try:
            async with asyncio.timeout_at(self._until) as limit:
                self._limit = limit
                return await output
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            self._limit = None

    def stop(self) -> None:
        """Ask the engine to stop, within `CONFIRM_S` from the first call. Synchronous."""
        self.stopping.set()
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + CONFIRM_S
            if self._limit is not None:
                self._limit.reschedule(self._until)
        if self.stream is not None:
            self.stream.cancel()


async def first_of(*events: asyncio.Event, within_s: float | None = None) -> bool:
    """Wait until one of the events is set, or the time is up; return whether one is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=within_s)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)


class SentOffsets:
    """The furthest offsets of a turn's text and reasoning that were handed to any transport. Connections report them."""

    def __init__(self) -> None:
        self.text = 0
        self.reasoning = 0


class Subscriber(Protocol):
    """An attached connection, as conversations see it. No method waits."""

    @property
    def closed(self) -> bool:
        """Whether the connection has left for good."""
        ...

    def publish(self, event: Event, made_at: float | None = None, sent: SentOffsets | None = None) -> None:
        """Deliver an event. If the subscriber does not understand it, it is left out, and the next event covers its seqs.

        `made_at`: for text, when the engine made it, if that is known. `sent`: for text of a turn that runs here, where to
        report what was handed to the transport.
        """
        ...

    def understands(self, event: Event) -> bool:
        """Return whether the subscriber understands events of this kind."""
        ...

    def withdraw(self, turn_id: str, chars: int, reasoning_off: int) -> None:
        """Withdraw undelivered parts of a turn: text beyond `chars`, and reasoning beyond `reasoning_off`."""
        ...


class NullSubscriber:
    """A sender that is not connected here: nothing is delivered."""

    closed = True

    def publish(self, event: Event, made_at: float | None = None, sent: SentOffsets | None = None) -> None:
        """Drop the event."""

    def understands(self, event: Event) -> bool:  # noqa: ARG002 - no event reaches it
        """Return False."""
        return False

    def withdraw(self, turn_id: str, chars: int, reasoning_off: int) -> None:
        """Nothing waits here."""


class WaitingTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that waits for the calls of a reply, as stored for the replica that continues it.

    `round`: how many earlier turns of the exchange called. `then`: how to generate this turn's reply, if a result specified it.
    """

    record: TurnRecord
    round: int
    send: MessageRequest
    generation: GenerationConfig
    then: GenerationConfig | None = None

    def encoded(self) -> bytes:
        """Return the stored form: the id of the reply that called comes first, for scripts."""
        return self.record.message_id.encode() + b"\n" + msgspec.json.encode(self)

    @classmethod
    def decoded(cls, kept: bytes) -> WaitingTurn:
        """Read the stored form."""
        return msgspec.json.decode(kept[kept.index(b"\n") + 1 :], type=WaitingTurn)


class ToolRound:
    """A turn's place among the turns that answer one message.

    `calls`: of its reply so far; `awaited`: the calls of the turn that it follows. `round`: how many earlier turns of the
    exchange called; `news`: set whenever an awaited call changes; `then`: how to generate its reply, if an awaited call's result
    specified it; `following`: the turn that waits for its calls, once it has ended. `idle`: set while none of its server tools
    runs here. `is_lost`: another replica continues it. `base`: the reply that it continues, as it was before.
    """

    def __init__(
        self, generation: GenerationConfig, *, awaited: ToolCalls | None = None, rounds: int = 0
    ) -> None:
        self.generation = generation
        self.then: GenerationConfig | None = None
        self.calls = ToolCalls()
        self.awaited = awaited
        self.base: MessageRecord | None = None
        self.round = rounds
        self.news = asyncio.Event()
        self.following: Turn | None = None
        self.idle = asyncio.Event()
        self.idle.set()
        self._running_tools = 0
        self.is_lost = False

    def lose(self) -> None:
        """Note that another replica continues the turn, and wake up what waits for it here."""
        self.is_lost = True
        self.news.set()

    @contextmanager
    def running_tool(self) -> Iterator[None]:
        """Note that a server tool runs while the context lasts."""
        self._running_tools += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._running_tools -= 1
            if not self._running_tools:
                self.idle.set()

    def has(self, call_id: str) -> bool:
        """Return whether a call belongs to the turn's reply, or is awaited by the turn."""
        return self.of(call_id) is not None

    def of(self, call_id: str) -> ToolCalls | None:
        """Return the group of calls that a call belongs to."""
        several = (self.calls, self.awaited)
        return next((calls for calls in several if calls is not None and calls.get(call_id)), None)


class Turn:
    """A turn as it runs here: its state, how it arrived, what others wait for, and how far its events were delivered."""

    def __init__(
        self,
        turn: TurnState,
        record: TurnRecord,
        send: MessageRequest,
        sender: Subscriber,
        *,
        tool_round: ToolRound | None = None,
        player: Player | None = None,
    ) -> None:
        self.turn = turn
        self.tool_round = tool_round or ToolRound(GenerationConfig())
        self.record = record  # `record.done`: how it ended, once published
        self.send = send
        self.sender = sender
        self.engine = EngineWait()
        self.journal: TurnJournal | None = None
        self.failure: Failure | None = None  # why it can't run
        self.grace: asyncio.TimerHandle | None = None  # cancels it if nobody reconnects
        self.player = player  # plays its reply
        self.source: Source | None = None  # what it answers, if that grows meanwhile

        self.was_attached = False  # its sender was attached before it arrived
        self.forwarded: str | None = None  # the replica that it was forwarded to
        self.revoked = False  # its conversation was deleted before it was accepted
        self.admitted: Admitted | None = None  # its slots; None: another replica admitted it

        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ready = asyncio.Event()  # messages can be accepted after it
        self.ended = asyncio.Event()  # its end was published, or it was never accepted
        self.released = asyncio.Event()  # its end is saved, too

        self.followers: set[Subscriber] = set()  # connections that have all of it
        self.sent = SentOffsets()
        self.published_off = self.published_reasoning_off = 0
        self.status: Status | None = None  # the last published one
        self.unsaved = False  # connections were notified that its text is not journalled
        self.fallback = ""  # the answering model that the store knows of
        self.settled = 0  # up to where the store has matching parts of its source and its reply
        self.end: Done | None = None  # how it ends, before that is published

    @classmethod
    def waiting(cls, following: WaitingTurn, calls: ToolCalls, sender: Subscriber) -> Turn:
        """Make a turn that waits for `calls`; it has its place in the conversation already."""
        record, send = following.record, following.send
        ids = TurnIds(conversation_id=send.conversation_id, turn_id=record.turn_id, reply_id=record.reply_id)
        tool_round = ToolRound(following.generation, awaited=calls, rounds=following.round)
        tool_round.then = following.then
        live = cls(TurnState(ids), record, send, sender, tool_round=tool_round)
        live.accepted.set_result(True)
        return live

    def following(self) -> WaitingTurn:
        """Return this waiting turn as it is stored."""
        return WaitingTurn(
            record=self.record,
            round=self.tool_round.round,
            send=self.send,
            generation=self.tool_round.generation,
            then=self.tool_round.then,
        )

    def begin_reply(self) -> None:
        """Note that awaited calls are settled. The reply is generated as `then` of their last result says, if there is one."""
        if (then := self.tool_round.then) is not None:
            self.tool_round.generation = then
            self.record = msgspec.structs.replace(self.record, model=then.model or self.record.model)

    def refuse_revoked(self) -> None:
        """Raise NotFound if its conversation was deleted before it was accepted."""
        if self.revoked:
            raise NotFound("The conversation was deleted before this message was accepted.")

    def seen(self, seen_off: int | None) -> int | None:
        """Return how much of its text was seen, or heard if it is played; None: only the transports know."""
        if (player := self.player) is None:
            return seen_off
        return player.heard if seen_off is None else min(seen_off, player.heard)

    @property
    def waits(self) -> bool:
        """Whether it waits for the calls of the turn before it."""
        return self.tool_round.awaited is not None and self.turn.accepted_at is None

    @property
    def is_in_history(self) -> bool:
        """Whether it is in the history: it was accepted, or follows one that was."""
        return self.tool_round.awaited is not None or self.turn.accepted_at is not None

    def sent_of(self, event: Event) -> SentOffsets | None:
        """Return where to report what was sent of an event, if it belongs to this turn."""
        return self.sent if getattr(event, "turn_id", None) == self.record.turn_id else None

    def continue_from(self, reply: MessageRecord) -> None:
        """Continue a reply that was cut; attached connections have that reply already."""
        self.tool_round.base = reply
        self.turn.continue_from(reply.message_id, text=reply.content, reasoning=reply.reasoning)
        self.published_off, self.published_reasoning_off = (
            len(reply.content),
            len(reply.reasoning),
        )
        self.record = msgspec.structs.replace(
            self.record, reply_id=reply.message_id, continues=ContinuedReply.of(reply)
        )

    def published_after(self, after: int, *, until: int) -> list[Journalled]:
        """Return its events with seqs after `after` up to `until`, in order; neighboring text is merged."""
        events = [*self.turn.pieces.merged_after(after, until=until), *self._call_events(after, until=until)]
        return sorted(events, key=lambda event: event.seq)

    def _call_events(self, after: int, *, until: int) -> list[ToolCall | ToolState]:
        """Return the events of its calls, and of awaited ones."""
        conversation_id, events = self.turn.ids.conversation_id, list[ToolCall | ToolState | None]()
        for call in self.tool_round.calls.records:
            events += (
                call.call_event(conversation_id=conversation_id, turn_id=self.record.turn_id),
                call.moved(conversation_id=conversation_id, turn_id=self.record.turn_id),
            )
        for call in self.tool_round.awaited.records if self.tool_round.awaited is not None else ():
            events.append(call.moved(conversation_id=conversation_id, turn_id=self.record.follows))
        return [event for event in events if event is not None and after < event.seq <= until]

    def choose(self, model: str) -> None:
        """Note the answering model, the requested one or a fallback."""
        fallback = "" if model == self.record.model else model
        self.record = msgspec.structs.replace(self.record, fallback=fallback)

    @property
    def is_unsaved(self) -> bool:
        """Whether text or an end was published that the store is not known to have."""
        return self.unsaved or (self.ended.is_set() and not self.released.is_set())

    @property
    def published_text(self) -> str:
        """The part of the reply that was published."""
        return self.turn.text[: self.published_off]

    @property
    def shown_calls(self) -> tuple[CallRecord, ...]:
        """The published calls of its reply; for a waiting turn, the awaited ones."""
        if self.waits and self.tool_round.awaited is not None:
            return self.tool_round.awaited.records
        return self.tool_round.calls.records

    @property
    def published_reasoning(self) -> str:
        """The part of its reasoning that was published."""
        return self.turn.reasoning[: self.published_reasoning_off]

    @property
    def wait(self) -> Status | None:
        """The last published status, while there is no text."""
        has_text = self.published_off > self.turn.pieces.base.chars
        return None if has_text or self.turn.is_over else self.status


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """End a turn, or all turns of a conversation if none is named.

    `conversation_id` None: that of the turn. `turn_id`: this turn, or the one that follows its calls. `client_msg_id`: the turn
    that answers this message now. `seen_off`: how much of the reply the reader saw; nothing of a reply that follows `turn_id`.
    `rollback`: remove the exchange from the history; `by_operator`: an operator cancels.
    """

    conversation_id: str | None = None
    turn_id: str | None = None
    client_msg_id: str | None = None
    seen_off: int | None = None
    rollback: bool = False
    by_operator: bool = False

    @property
    def cause(self) -> Cause:
        """The cause of the end that this cancel decides."""
        if self.by_operator:
            return Cause.OPERATOR
        return Cause.ROLLBACK if self.rollback else Cause.CLIENT

    @property
    def is_whole(self) -> bool:
        """Whether this cancel ends all turns of its conversation."""
        return self.turn_id is None and self.client_msg_id is None

    def matches(self, live: Turn) -> bool:
        """Return whether this cancel ends `live`, a turn of its conversation."""
        if self.client_msg_id is not None:
            return live.send.client_msg_id == self.client_msg_id
        return self.turn_id in (None, live.turn.ids.turn_id, live.record.follows)

    def may_cause(self, done: Done) -> bool:
        """Return whether `done`, the end of a turn that ran elsewhere, may be the outcome of this cancel."""
        is_requested = done.cancel is not None and done.cancel.cause in (
            Cause.CLIENT,
            Cause.ROLLBACK,
            Cause.OPERATOR,
        )
        is_open = self.turn_id is None or self.client_msg_id is not None
        return is_requested and (is_open or self.turn_id in (done.turn_id, done.follows))

    def seen_off_for(self, live: Turn) -> int | None:
        """Return how much of `live`, which this cancel ends, was seen; None if the client does not say."""
        is_named = self.turn_id in (None, live.turn.ids.turn_id)
        return self.seen_off if is_named or self.seen_off is None else 0


class Cancelled(msgspec.Struct, frozen=True):
    """The outcome of a cancel. `turn_id` None: nothing ran; `already`: the turn had ended, or its end was decided.

    `is_part`: further turns may run on another replica; `is_forwarded`: a turn runs there, or will.
    """

    turn_id: str | None
    already: bool
    is_part: bool = False
    is_forwarded: bool = False


OnCancelled = Callable[[Cancelled], None]
