"""Appends text to the source of a live translation, on whichever replica runs it: once, in order, filtered and stored before it is published."""

from __future__ import annotations

import asyncio

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.errors import Conflict, NotFound, OwnershipLost, StoreDown, StoreFault
from sessions.events import SourceText
from sessions.filters.chain import Filters
from sessions.replicas.forwarder import Forwarder
from sessions.store.codec import encode_message, encode_turn
from sessions.store.history import LATE, History
from sessions.translation.interpretation import GrowingText
from sessions.translation.translator import Interpretation, interpretation_of
from sessions.turn.interfaces import Grown, Growth
from sessions.turn.turn import Turn, first_of

ATTEMPTS = 3
FILTERED_CHARS = 1000
"""Characters before a growth that filters read again: a match may begin there."""
_MOVES = "The interpretation is moving to another server; send it again in a moment."
_ENDED = "The interpretation has ended; later text is not translated."
_OVER = "The interpretation was ended; further text is not translated."


class SourceUpdateHandler:
    """Grows sources for one replica. Methods raise Refused."""

    def __init__(self, *, history: History, filters: Filters, forwarder: Forwarder) -> None:
        self._history = history
        self._filters = filters
        self._forwarder = forwarder

    async def grow(self, conversation: Conversation, growth: Growth) -> Grown:
        """Grow a source, wherever it is translated; return the outcome."""
        for _ in range(ATTEMPTS):
            if (grown := await self._here(conversation, growth)) is not None:
                return grown
            if (runner := await self._forwarder.runner_of(conversation)) is None:
                return await self._known(conversation, growth)
            there = await self._forwarder.request(conversation, runner, growth)
            if there is not None and there.grown is not None:
                return there.grown
        raise StoreDown(_MOVES)

    async def grow_here(self, conversation: Conversation, growth: Growth) -> Grown:
        """Grow a source here, for another replica; return the outcome."""
        return await self._here(conversation, growth) or await self._known(conversation, growth)

    async def _here(self, conversation: Conversation, growth: Growth) -> Grown | None:
        """Grow a source that is translated here; None if it is not."""
        while (live := _target_turn(conversation, growth)) is not None:
            if not await asyncio.shield(live.accepted):
                continue
            await first_of(live.ready, live.released)
            if (interpretation := interpretation_of(live)) is None:
                return None
            try:
                return await self._grow(conversation, live, interpretation, growth)
            except OwnershipLost:  # another replica closed it while this one stalled
                await live.released.wait()
        return None

    async def _grow(
        self, conversation: Conversation, live: Turn, interpretation: Interpretation, growth: Growth
    ) -> Grown:
        """Grow the source of a turn that runs here; text that was known before counts once.

        Raises Conflict, ContentTooLong, Filtered, OwnershipLost; StoreDown if the growth may or may not be stored: it may be sent
        again.
        """
        source = interpretation.source
        async with interpretation.growing:
            if (new := source.news(growth)) is not None:
                await self._filters.check(source.text[-FILTERED_CHARS:] + new)
            async with conversation.order_lock:
                await _write_rest(live)
                if new is not None:
                    await self._take(conversation, live, interpretation, new, final=growth.final)
        return Grown(
            turn_id=live.record.turn_id, chars=len(source.text), final=source.is_final, already=new is None
        )

    @staticmethod
    async def _take(
        conversation: Conversation,
        live: Turn,
        interpretation: Interpretation,
        new: str,
        *,
        final: bool,
    ) -> None:
        if live.turn.is_over or live.journal is None:
            raise Conflict(_OVER)
        event = SourceText(
            conversation_id=conversation.conversation_id,
            turn_id=live.record.turn_id,
            seq=conversation.next_seq(),
            off=len(interpretation.source.text),
            text=new,
            final=final,
        )
        interpretation.grow(new, final=final)
        live.record = msgspec.structs.replace(live.record, source=interpretation.state())
        try:
            saved = await live.journal.write(event, _patch(live, interpretation))
        except StoreFault:
            conversation.publish_control(event)  # the reader knows as much as this replica
            raise
        conversation.publish_control(event)
        if not saved:
            raise StoreDown(LATE)

    async def _known(self, conversation: Conversation, growth: Growth) -> Grown:
        """Return the outcome by the store's records, for an interpretation that has ended."""
        record = (
            None if growth.turn_id is None else await self._history.turn(conversation.keys, growth.turn_id)
        )
        if record is None or record.source is None:
            raise NotFound("Nothing is being translated in this conversation; begin with `interpret.start`.")
        message = await self._history.message(conversation.keys, record.message_id)
        source = GrowingText(message.content if message is not None else "", is_final=record.source.is_final)
        if message is None or source.news(growth) is not None:
            raise Conflict(_ENDED)
        return Grown(turn_id=record.turn_id, chars=len(source.text), final=source.is_final, already=True)


def _target_turn(conversation: Conversation, growth: Growth) -> Turn | None:
    """Return the newest turn that translates, or may turn out to; None if there is none."""
    coming = [*conversation.turns, *conversation.accepting]
    meant = (live for live in reversed(coming) if growth.turn_id in (None, live.record.turn_id))
    return next((live for live in meant if _may_translate(live)), None)


def _may_translate(live: Turn) -> bool:
    is_coming = not live.accepted.done() and not live.forwarded
    goes_on = is_coming and live.tool_round.generation.continues
    return live.source is not None or live.send.source is not None or goes_on


async def _write_rest(live: Turn) -> None:
    """Write earlier events, which may include this growth. Raises StoreDown if that is impossible now."""
    if live.journal is not None and not live.turn.is_over and not await live.journal.catch_up():
        raise StoreDown(LATE)


def _patch(live: Turn, interpretation: Interpretation) -> bytes:
    """Return a patch that stores the whole source, and the turn's progress in case this replica dies."""
    message = interpretation.message
    kept = [f"message:{message.message_id}", encode_message(message).decode()]
    live.settled = live.record.source.off if live.record.source is not None else 0
    return msgspec.json.encode(
        {"set": [*kept, f"turn:{live.record.turn_id}", encode_turn(live.record).decode()]}
    )
