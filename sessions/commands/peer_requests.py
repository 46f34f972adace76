"""Carries out requests of other replicas, where this one runs the conversation's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress

from engine.messages import current_trace
from sessions.commands.removal import HistoryRemover
from sessions.commands.tool_results import ToolResultHandler
from sessions.commands.turn_manager import TurnManager
from sessions.conversation.conversation import (
    BackgroundTasks,
    Conversation,
    ConversationRegistry,
    refusal_of,
)
from sessions.errors import Refused, StoreDown
from sessions.events import Accepted, Event
from sessions.limits.slots import on_behalf_of, with_heaviness
from sessions.replicas.forwarder import Forwarder
from sessions.replicas.rpc import (
    DeleteRequest,
    PeerRequest,
    Refusal,
    Rpc,
    RpcRequest,
    RpcResponse,
    ScatterGather,
    SendRequest,
)
from sessions.turn.interfaces import Grown, Growth
from sessions.turn.tool_calls import CallAnswer, Decision, Result
from sessions.turn.turn import Cancel, Cancelled, NullSubscriber, SentOffsets

GrowHere = Callable[[Conversation, Growth], Awaitable[Grown]]


class PeerRequestHandler:
    """Carries out requests in their order. `grow_here` takes more of a source; it may raise Refused."""

    def __init__(
        self,
        *,
        directory: ConversationRegistry,
        turns: TurnManager,
        rpc: Rpc,
        remover: HistoryRemover,
        answering: ToolResultHandler,
        grow_here: GrowHere,
        gathering: ScatterGather,
        forwarder: Forwarder,
        tasks: BackgroundTasks,
    ) -> None:
        self._directory = directory
        self._turns = turns
        self._rpc = rpc
        self._remover = remover
        self._answering = answering
        self._grow_here = grow_here
        self._gathering = gathering
        self._forwarder = forwarder
        self._tasks = tasks

    def take(self, order: RpcRequest) -> None:
        """Begin a request at once, so that the next one finds its effect; answer when it is done.

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
                outcome = self._turns.cancel(order.owner, cancel)
                self._later(order, self._cancelled(order, cancel, outcome))
            case DeleteRequest():
                self._later(order, self._delete(order))
            case Result() | Decision() as answer:
                self._later(order, self._answer_call(order, answer))
            case Growth() as growth:
                self._later(order, self._grow(order, growth))
            case PeerRequest(body=body):
                self._answer(order, RpcResponse(number=order.number, body=self._gathering.respond(body)))

    def _send(self, order: RpcRequest, ask: SendRequest) -> None:
        if self._turns.has(order.owner, ask.send):  # regardless of capacity: no turn begins
            self._answer(order, RpcResponse(number=order.number, already=True))
            return
        sender = _RemoteSubscriber()
        try:
            with on_behalf_of(ask.send.group or ask.send.client_id), with_heaviness(lambda: ask.crowds):
                taking = self._turns.send(order.owner, sender, ask.send, ask.generation, ask.names)
        except Refused as refused:
            self._answer(order, _refusal(order, refused))
            return
        if ask.cancelled:
            self._turns.cancel(order.owner, Cancel(turn_id=ask.names.turn_id))
        self._later(order, self._taken(order, ask.names.turn_id, taking, sender))

    async def _taken(
        self, order: RpcRequest, turn_id: str, taking: asyncio.Task[Refused | None], sender: _RemoteSubscriber
    ) -> RpcResponse:
        """Return the answer once the message is accepted: it may be queued for longer than its sender waits."""
        if not await self._turns.accepted(turn_id) and (refused := await asyncio.shield(taking)) is not None:
            raise refused
        return RpcResponse(number=order.number, already=sender.saw_a_duplicate)

    async def _cancelled(self, order: RpcRequest, cancel: Cancel, outcome: Cancelled | None) -> RpcResponse:
        if outcome is None:
            with (
                suppress(StoreDown),
                self._conversation(order) as conversation,
            ):  # the next cancel tries it again
                await self._forwarder.runner_of(conversation)
            outcome = Cancelled(cancel.turn_id, already=True)
        return RpcResponse(number=order.number, turn_id=outcome.turn_id, already=outcome.already)

    async def _delete(self, order: RpcRequest) -> RpcResponse:
        await self._remover.delete(order.owner, order.conversation_id)
        return RpcResponse(number=order.number)

    async def _answer_call(self, order: RpcRequest, answer: CallAnswer) -> RpcResponse:
        with self._conversation(order) as conversation:
            outcome = await self._answering.answer_here(conversation, answer)
        return RpcResponse(number=order.number, state=outcome.state, already=outcome.already)

    async def _grow(self, order: RpcRequest, growth: Growth) -> RpcResponse:
        with self._conversation(order) as conversation:
            return RpcResponse(number=order.number, grown=await self._grow_here(conversation, growth))

    def _conversation(self, order: RpcRequest) -> AbstractContextManager[Conversation]:
        return self._directory.using(order.owner, order.conversation_id)

    def _later(self, order: RpcRequest, work: Coroutine[None, None, RpcResponse]) -> None:
        """Answer a request once it is carried out; work that raises Refused is answered with the refusal."""

        async def carry_out() -> None:
            try:
                answer = await work
            except Refused as refused:
                answer = _refusal(order, refused)
            await self._post(order, answer)

        self._tasks.begin(refusal_of(carry_out()))

    def _answer(self, order: RpcRequest, answer: RpcResponse) -> None:
        self._tasks.begin(refusal_of(self._post(order, answer)))

    async def _post(self, order: RpcRequest, answer: RpcResponse) -> None:
        with suppress(StoreDown):  # the sender gets no answer, and reports that
            await self._rpc.answer(order, answer)


def _refusal(order: RpcRequest, refused: Refused) -> RpcResponse:
    return RpcResponse(number=order.number, refusal=Refusal.of(refused))


class _RemoteSubscriber(NullSubscriber):
    """Stands for a sender at another replica, which delivers to its connection: nothing is delivered here."""

    def __init__(self) -> None:
        self.saw_a_duplicate = False

    def publish(
        self,
        event: Event,
        made_at: float | None = None,  # noqa: ARG002 - no text is delivered
        sent: SentOffsets | None = None,  # noqa: ARG002 - as above
    ) -> None:
        """Note whether the message was known."""
        self.saw_a_duplicate = self.saw_a_duplicate or (isinstance(event, Accepted) and event.duplicate)
