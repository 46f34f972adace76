"""Changes the state of calls. Each change takes a seq from memory, and is journalled before it is published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.errors import StoreDown, StoreFault
from sessions.events import CallState
from sessions.records import CallRecord
from sessions.store.history.codec import encode_call
from sessions.store.history.history import History
from sessions.turn.message_request import GenerationConfig
from sessions.turn.tool_calls import CallAnswer, Result, ToolCalls, cancelled
from sessions.turn.turn import Turn

AGAIN_S = 1.0
CONFIRMED_WITHIN_S = 1.5
"""How long a client that sends a result waits at most until it is durable enough."""
_LATE = "The store does not answer in time; send it again in a moment."

Change = Callable[[CallRecord], CallRecord]


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

        Raises Conflict, ContentTooLong, OwnershipLost; StoreDown if it may or may not be stored: it may be sent again.
        """
        term = self._history.term
        async with conversation.order_lock:
            if _accepting_calls(live, answer) is not None:
                await self._write_rest(live)
            if (calls := _accepting_calls(live, answer)) is None:
                return None
            moved = calls.answered(answer, runner=self.replica)
            is_news = moved != calls.get(answer.call_id)
            then = answer.then if isinstance(answer, Result) else None
            if is_news and not await self._move(conversation, live, calls, moved, then=then):
                raise StoreDown(_LATE)
        await self._confirm(conversation, term)
        return AnswerOutcome(moved.state, already=not is_news)

    async def catch_up(self, conversation: Conversation, live: Turn) -> bool:
        """Write what is not stored yet; return whether all is stored. Raises OwnershipLost, StoreFault."""
        async with conversation.order_lock:
            return live.journal is None or await live.journal.catch_up()

    @staticmethod
    async def _write_rest(live: Turn) -> None:
        """Write earlier events, which may include this answer. Raises StoreDown if that is impossible now."""
        if live.journal is not None and not await live.journal.catch_up():
            raise StoreDown(_LATE)

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

    async def _confirm(self, conversation: Conversation, term: int) -> None:
        try:
            async with asyncio.timeout(CONFIRMED_WITHIN_S):
                await self._history.confirm(conversation.keys, term=term)
        except TimeoutError:
            raise StoreDown(_LATE) from None


def _patch(call: CallRecord, live: Turn) -> bytes:
    """Return what else the store changes: it has the calls of an ended reply, and the turn that waits for them."""
    fields = [f"call:{call.call_id}", encode_call(call).decode()]
    if live.tool_round.then is not None:
        fields += ["follow", live.following().encoded().decode()]
    return msgspec.json.encode({"set": fields})


def _accepting_calls(live: Turn, answer: CallAnswer) -> ToolCalls | None:
    """Return the calls that include an answer's call; None if they take no answers any more."""
    return None if live.turn.is_over or live.journal is None else live.tool_round.of(answer.call_id)
