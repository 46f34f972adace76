"""Moves calls. Each move takes a seq from memory, and is journalled with what it changes before it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.errors import StoreDown, StoreFault
from sessions.events import CallState
from sessions.records import CallRecord
from sessions.store.history.coding import encode_call
from sessions.store.history.history import History
from sessions.turn.calls import CallAnswer, Calls, cancelled
from sessions.turn.live_turn import LiveTurn

AGAIN_S = 1.0
CONFIRMED_WITHIN_S = 1.5
"""How long whoever brings a result waits at most until it is as safe as it has to be."""
_LATE = "The store does not answer in time; send it again in a moment."

Change = Callable[[CallRecord], CallRecord]


class Answered(msgspec.Struct, frozen=True):
    """What became of an answer. `already`: it came before."""

    state: CallState
    already: bool


class Settler:
    """Moves the calls of turns that run or wait here. `replica`: whose name stands with the calls that it runs itself."""

    def __init__(self, history: History, *, replica: str) -> None:
        self._history = history
        self.replica = replica

    async def answer(self, conversation: Conversation, live: LiveTurn, answer: CallAnswer) -> Answered | None:
        """Takes a client's answer; None where the turn that has the call is about to end: look again once it has.

        Raises Conflict, ContentTooLong, OwnershipLost; StoreDown where nobody knows whether it was kept: it may come again.
        """
        async with conversation.locks.ordering:
            if _taking(live, answer) is not None:
                await self._write_rest(live)
            if (calls := _taking(live, answer)) is None:
                return None
            moved = calls.answered(answer, runner=self.replica)
            is_news = moved != calls.get(answer.call_id)
            if is_news and not await self._move(conversation, live, calls, moved):
                raise StoreDown(_LATE)
        await self._confirm(conversation)
        return Answered(moved.state, already=not is_news)

    async def catch_up(self, conversation: Conversation, live: LiveTurn) -> bool:
        """Whether all that was told of a turn is in the store; what is not is tried once more. Raises OwnershipLost, StoreFault."""
        async with conversation.locks.ordering:
            return live.journal is None or await live.journal.catch_up()

    @staticmethod
    async def _write_rest(live: LiveTurn) -> None:
        """What was told before may not be kept so far, this answer itself among it. Raises StoreDown where it can't be now."""
        if live.journal is not None and not await live.journal.catch_up():
            raise StoreDown(_LATE)

    async def change(
        self, conversation: Conversation, live: LiveTurn, call_id: str, change: Change
    ) -> CallRecord | None:
        """Moves a call that is open, and gives it; None where it is settled, or the change leaves it as it is.

        Raises OwnershipLost, StoreFault.
        """
        async with conversation.locks.ordering:
            calls = live.exchange.of(call_id)
            call = calls.get(call_id) if calls is not None else None
            if calls is None or call is None or call.state.is_settled or (moved := change(call)) == call:
                return None
            await self._move(conversation, live, calls, moved)
            return calls.get(call_id)

    async def cancel_all(self, conversation: Conversation, live: LiveTurn) -> None:
        """Cancels all awaited calls that are open. Raises OwnershipLost, StoreFault."""
        for call in live.exchange.awaited.open if live.exchange.awaited is not None else ():
            await self.change(conversation, live, call.call_id, cancelled)

    async def until_certain(self, conversation: Conversation, live: LiveTurn) -> None:
        """Returns once all that was written for a turn is as safe as it has to be. Raises OwnershipLost, StoreFault."""
        while live.journal is not None:
            try:
                await live.journal.write_rest()
                await self._history.confirm(conversation.keys)
            except StoreFault:
                raise
            except StoreDown:
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _move(
        self, conversation: Conversation, live: LiveTurn, calls: Calls, moved: CallRecord
    ) -> bool:
        """Whether the move is in the store. What the store does not take now is written with what comes behind."""
        if live.journal is None:
            raise RuntimeError("The turn has no journal.")
        moved = msgspec.structs.replace(moved, state_seq=conversation.next_seq())
        calls.put(moved)
        turn_id = live.record.follows if calls is live.exchange.awaited else live.record.turn_id
        event = moved.moved(conversation_id=conversation.conversation_id, turn_id=turn_id)
        if event is None:
            raise RuntimeError("The call did not move.")
        try:
            is_saved = await live.journal.write(event, _patch(moved) if live.waits else b"")
        except StoreFault:
            conversation.publish_bare(event)  # the reader knows as much as this replica
            raise
        conversation.publish_bare(event)
        live.exchange.news.set()
        return is_saved

    async def _confirm(self, conversation: Conversation) -> None:
        try:
            async with asyncio.timeout(CONFIRMED_WITHIN_S):
                await self._history.confirm(conversation.keys)
        except TimeoutError:
            raise StoreDown(_LATE) from None


def _patch(call: CallRecord) -> bytes:
    """What the store changes besides: of a reply that has ended it has the calls."""
    return msgspec.json.encode({"set": [f"call:{call.call_id}", encode_call(call).decode()]})


def _taking(live: LiveTurn, answer: CallAnswer) -> Calls | None:
    """The calls among which an answer's is; None where they take no answer any more."""
    return None if live.turn.is_over or live.journal is None else live.exchange.of(answer.call_id)
