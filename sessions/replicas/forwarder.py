"""Requests about a conversation to the replica that runs its turn, which alone may carry them out."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation
from sessions.errors import SessionError
from sessions.events import Done
from sessions.limits.slots import is_heavy_caller
from sessions.records import Meta, Owner
from sessions.replicas.reaper import Reaper
from sessions.replicas.relay import Subscriptions
from sessions.replicas.rpc import (
    DeleteRequest,
    RefusedElsewhere,
    ReplicaGone,
    RequestBody,
    Rpc,
    RpcResponse,
    SendRequest,
)
from sessions.store.history import History
from sessions.store.ownership import Ownership, RunningTurn
from sessions.turn.message_request import GenerationConfig
from sessions.turn.turn import Cancel, Cancelled, OnCancelled, Turn
from sessions.turn.turn_state import TurnMessageIds


class RunsElsewhere(SessionError):
    """A turn of the conversation runs on another replica."""

    def __init__(self, runner: str) -> None:
        super().__init__(runner)
        self.runner = runner


class Forwarder:
    """Finds the replica that runs a conversation, and asks it.

    Methods raise RefusedElsewhere, and StoreDown, also if the other replica does not answer.
    """

    def __init__(
        self,
        *,
        rpc: Rpc,
        history: History,
        ownership: Ownership,
        watching: Subscriptions,
        reaper: Reaper,
    ) -> None:
        self._rpc = rpc
        self._history = history
        self._ownership = ownership
        self._watching = watching
        self._reaper = reaper
        self._lookups: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    async def runner_of(self, conversation: Conversation) -> str | None:
        """Return the other replica that runs a turn of the conversation, if any. Closes turns that should run here but do not."""
        meta = await self._history.load(conversation.keys)
        if meta is None or not (meta.running or meta.queue) or meta.runner is None:
            return None
        if meta.runner == self._ownership.replica:
            await self._close_left_turns(conversation, meta)
            return None
        return meta.runner

    async def _close_left_turns(self, conversation: Conversation, meta: Meta) -> None:
        """Close the turns that a replica left in the store, that do not run here, and that are listed nowhere any more."""
        left = (
            RunningTurn(
                owner=conversation.owner,
                conversation_id=conversation.conversation_id,
                turn_id=turn_id,
                replica=meta.runner or "",
            )
            for turn_id in (meta.running, *meta.queue)
            if turn_id and conversation.turn(turn_id) is None
        )
        if self._ownership.relist(left):
            await self._reaper.reap()

    async def send(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, *, runner: str
    ) -> RpcResponse | None:
        """Forward a message; its events come as all events of the conversation do. None if that replica is dead."""
        await self._follow(conversation)
        live.forwarded = runner
        conversation.others.sent[live.send.client_msg_id] = live
        try:
            answer = await self.request(conversation, runner, _send_request(live, generation))
        except BaseException:
            conversation.others.sent.pop(live.send.client_msg_id, None)
            raise
        if answer is None or answer.already:
            conversation.others.sent.pop(live.send.client_msg_id, None)
            live.forwarded = None
        return answer

    async def repeat(
        self, conversation: Conversation, live: Turn, generation: GenerationConfig, *, runner: str
    ) -> None:
        """Wait until the replica of a message's turn confirms the turn, has taken the message again, or is dead."""
        await self.request(conversation, runner, _send_request(live, generation))

    async def _follow(self, conversation: Conversation) -> None:
        await self._watching.begin(conversation)
        if (meta := await self._history.load(conversation.keys)) is not None:
            await catch_up_to(self._history, conversation, meta.epoch, meta.seq)

    async def cancel(
        self, conversation: Conversation, cancel: Cancel, on_cancelled: OnCancelled
    ) -> Cancelled:
        """Cancel a turn, or all turns of a conversation; report it once, before the resulting end is published."""
        outcome: list[Cancelled] = []

        def ends(done: Done) -> None:  # the end may come faster than the answer
            if cancel.may_cause(done) and not outcome:
                outcome.append(Cancelled(done.turn_id, already=False))
                on_cancelled(outcome[0])

        with conversation.others.cancelling(ends):
            answered = await self._cancel(conversation, cancel)
        if not outcome:
            on_cancelled(answered)
        return outcome[0] if outcome else answered

    async def _cancel(self, conversation: Conversation, cancel: Cancel) -> Cancelled:
        async with conversation.claim_lock:  # a following message waits until the cancel is reported
            runner = await self.runner_of(conversation) or _takes_in(conversation, cancel)
            answer = await self.request(conversation, runner, cancel) if runner else None
        if answer is None:
            return Cancelled(cancel.turn_id, already=True)
        return Cancelled(answer.turn_id, answer.already)

    async def delete(self, conversation: Conversation) -> bool:
        """Delete a conversation whose turn runs elsewhere; False if none does."""
        runner = await self.runner_of(conversation)
        return runner is not None and await self.request(conversation, runner, DeleteRequest()) is not None

    async def conversation_of(self, owner: Owner, turn_id: str) -> str | None:
        """Return the conversation of an owner's running turn, wherever it runs."""
        lookup = self._lookups.setdefault(owner, asyncio.Lock())
        async with lookup:
            turn = await self._ownership.find(turn_id)
        return turn.conversation_id if turn is not None and turn.owner == owner else None

    async def lookups_done(self, owner: Owner) -> None:
        """Wait until earlier requests have found their conversations: a message after a cancel stays after it."""
        if (lookup := self._lookups.get(owner)) is not None:
            async with lookup:
                pass

    async def request(self, conversation: Conversation, runner: str, ask: RequestBody) -> RpcResponse | None:
        """Have the replica that runs a turn carry a request out. Return the answer; None if the replica is dead. Its turns have ended then."""
        try:
            answer = await self._rpc.ask(runner, conversation.owner, conversation.conversation_id, ask)
        except ReplicaGone:
            await self._reaper.reap()
            meta = await self._history.load(conversation.keys)
            if meta is not None and meta.runner == runner:
                await self._close_left_turns(conversation, meta)
            return None
        if answer.refusal is not None:
            raise RefusedElsewhere(answer.refusal)
        return answer


def _send_request(live: Turn, generation: GenerationConfig) -> SendRequest:
    names = TurnMessageIds(live.turn.ids.turn_id, live.record.message_id, live.turn.ids.reply_id)
    over = live.turn.is_over
    return SendRequest(
        send=live.send, generation=generation, names=names, cancelled=over, crowds=is_heavy_caller()
    )


def _takes_in(conversation: Conversation, cancel: Cancel) -> str | None:
    """Return the replica that is accepting a message that `cancel` matches: no turn runs there yet."""
    meant = (live for live in conversation.turns if cancel.matches(live))
    return next((live.forwarded for live in meant if live.forwarded), None)
