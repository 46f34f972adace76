"""Carries out the orders of other replicas, since this one runs the conversation's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import msgspec

from engine.messages import current_trace
from sessions.commands.turn_manager import TurnManager
from sessions.conversation.conversation import BackgroundTasks, refusal_of
from sessions.errors import Refused, StoreDown
from sessions.events import Accepted, Event
from sessions.limits.slots import on_behalf_of, with_heaviness
from sessions.records import Owner
from sessions.replicas.rpc import (
    CallAnswerRequest,
    DeleteRequest,
    GrowRequest,
    PeerRequest,
    Refusal,
    Rpc,
    RpcRequest,
    RpcResponse,
    SendRequest,
)
from sessions.tool_round import AnswerOutcome
from sessions.turn.interfaces import Grown, Growth
from sessions.turn.tool_calls import CallAnswer
from sessions.turn.turn import Cancel, Cancelled, NullSubscriber, SentOffsets

Delete = Callable[[Owner, str], Awaitable[None]]
OnEvent = Callable[[str], str]
AnswerHere = Callable[[Owner, str, CallAnswer], Awaitable[AnswerOutcome]]
GrowHere = Callable[[Owner, str, Growth], Awaitable[Grown]]
CloseOrphaned = Callable[[Owner, str], Awaitable[None]]


class PeerRequestHandler:
    """Carries out orders in their sequence.

    `delete` removes a conversation, `answer_here` takes an answer to a call, `grow_here` takes more of a source; all may raise
    Refused. `answer_peer` answers requests of the layer above. `close_left_turns` closes a conversation's turns that should run here, and do not.
    """

    def __init__(
        self,
        *,
        turns: TurnManager,
        rpc: Rpc,
        delete: Delete,
        answer_here: AnswerHere,
        grow_here: GrowHere,
        answer_peer: OnEvent,
        close_left_turns: CloseOrphaned,
        tasks: BackgroundTasks,
    ) -> None:
        self._turns = turns
        self._rpc = rpc
        self._delete = delete
        self._answer_here = answer_here
        self._grow_here = grow_here
        self._answer_peer = answer_peer
        self._close_orphaned = close_left_turns
        self._tasks = tasks

    def take(self, order: RpcRequest) -> None:
        """Begin an order at once, so that the next one finds its effect; answer when it is done.

        Its tasks carry the id of the client's request at the other replica.
        """
        before = current_trace.set(order.trace)
        try:
            self._begin(order)
        finally:
            current_trace.reset(before)

    def _begin(self, order: RpcRequest) -> None:
        match order.ask:
            case SendRequest() as ask:
                self._send(order, ask)
            case Cancel() as cancel:
                self._later(self._answer_cancel(order, self._turns.cancel(order.owner, cancel), cancel))
            case DeleteRequest():
                self._later(self._delete_and_answer(order))
            case CallAnswerRequest() as ask:
                self._later(self._answer_call(order, ask.answer))
            case GrowRequest(growth=growth):
                self._later(self._grow(order, growth))
            case PeerRequest(body=body):
                self._later(
                    self._answer(order, RpcResponse(number=order.number, body=self._answer_peer(body)))
                )

    def _send(self, order: RpcRequest, ask: SendRequest) -> None:
        if self._turns.has(order.owner, ask.send):  # regardless of capacity: nothing begins
            self._later(self._answer(order, RpcResponse(number=order.number, already=True)))
            return
        sender = _RemoteSubscriber()
        try:
            with on_behalf_of(ask.send.group or ask.send.client_id), with_heaviness(lambda: ask.crowds):
                taking = self._turns.send(order.owner, sender, ask.send, ask.generation, ask.names)
        except Refused as refused:
            self._later(self._answer(order, RpcResponse(number=order.number, refusal=Refusal.of(refused))))
            return
        if ask.cancelled:
            self._turns.cancel(order.owner, Cancel(turn_id=ask.names.turn_id))
        self._later(self._answer_for(order, ask.names.turn_id, taking, sender))

    async def _answer_for(
        self, order: RpcRequest, turn_id: str, taking: asyncio.Task[Refused | None], sender: _RemoteSubscriber
    ) -> None:
        """Answer once it is accepted: a message may be queued for longer than its sender waits."""
        refused = None if await self._turns.accepted(turn_id) else await asyncio.shield(taking)
        refusal = None if refused is None else Refusal.of(refused)
        await self._answer(
            order, RpcResponse(number=order.number, refusal=refusal, already=sender.saw_a_duplicate)
        )

    async def _answer_cancel(self, order: RpcRequest, outcome: Cancelled | None, cancel: Cancel) -> None:
        if outcome is None:
            with suppress(StoreDown):  # whoever asks next tries it again
                await self._close_orphaned(order.owner, order.conversation_id)
        already, turn_id = (True, cancel.turn_id) if outcome is None else (outcome.already, outcome.turn_id)
        await self._answer(order, RpcResponse(number=order.number, turn_id=turn_id, already=already))

    async def _delete_and_answer(self, order: RpcRequest) -> None:
        answer = RpcResponse(number=order.number)
        try:
            await self._delete(order.owner, order.conversation_id)
        except Refused as refused:
            answer = msgspec.structs.replace(answer, refusal=Refusal.of(refused))
        await self._answer(order, answer)

    async def _answer_call(self, order: RpcRequest, call_answer: CallAnswer) -> None:
        answer = RpcResponse(number=order.number)
        try:
            outcome = await self._answer_here(order.owner, order.conversation_id, call_answer)
        except Refused as refused:
            answer = msgspec.structs.replace(answer, refusal=Refusal.of(refused))
        else:
            answer = msgspec.structs.replace(answer, state=outcome.state, already=outcome.already)
        await self._answer(order, answer)

    async def _grow(self, order: RpcRequest, growth: Growth) -> None:
        answer = RpcResponse(number=order.number)
        try:
            grown = await self._grow_here(order.owner, order.conversation_id, growth)
        except Refused as refused:
            answer = msgspec.structs.replace(answer, refusal=Refusal.of(refused))
        else:
            answer = msgspec.structs.replace(answer, grown=grown)
        await self._answer(order, answer)

    async def _answer(self, order: RpcRequest, answer: RpcResponse) -> None:
        with suppress(StoreDown):  # the sender gets no answer, and reports that
            await self._rpc.answer(order, answer)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.begin(refusal_of(work))


class _RemoteSubscriber(NullSubscriber):
    """The sender of a message at another replica, which delivers to its connection: nothing is delivered here."""

    def __init__(self) -> None:
        self.saw_a_duplicate = False

    def publish(
        self,
        event: Event,
        made_at: float | None = None,  # noqa: ARG002 - no text is delivered
        sent: SentOffsets | None = None,  # noqa: ARG002 - as above
    ) -> None:
        """Note that the message was known."""
        self.saw_a_duplicate = self.saw_a_duplicate or (isinstance(event, Accepted) and event.duplicate)
