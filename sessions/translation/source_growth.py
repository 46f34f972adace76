"""Takes growth of a source that is translated here: it is in the journal and the history before it is published."""

from __future__ import annotations

import msgspec

from sessions.conversation.conversation import Conversation
from sessions.errors import Conflict, StoreDown, StoreFault
from sessions.events import SourceText
from sessions.filters.chain import Filters
from sessions.interpreting.interpretation import Interpretation
from sessions.interpreting.source import Grown, Growth
from sessions.store.history.codec import encode_message, encode_turn
from sessions.turn.turn import Turn

_LATE = "The store does not answer in time; send it again in a moment."
_OVER = "The interpretation was ended; further text is not translated."
FILTERED_CHARS = 1000
"""Characters before a growth that filters read again: a match may begin there."""


class SourceGrowth:
    """Grows sources of turns that run here."""

    def __init__(self, filters: Filters) -> None:
        self._filters = filters

    async def grow(
        self, conversation: Conversation, live: Turn, interpretation: Interpretation, growth: Growth
    ) -> Grown:
        """Take more of a source; text that was known before counts once.

        Raises Conflict, ContentTooLong, Filtered, OwnershipLost; StoreDown if it may or may not be stored: it
        may be sent again.
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
        live.record = msgspec.structs.replace(live.record, interprets=interpretation.state())
        try:
            saved = await live.journal.write(event, _patch(live, interpretation))
        except StoreFault:
            conversation.publish_control(event)  # the reader knows as much as this replica
            raise
        conversation.publish_control(event)
        if not saved:
            raise StoreDown(_LATE)


async def _write_rest(live: Turn) -> None:
    """Write earlier events, which may include this growth. Raises StoreDown if that is impossible now."""
    if live.journal is not None and not live.turn.is_over and not await live.journal.catch_up():
        raise StoreDown(_LATE)


def _patch(live: Turn, interpretation: Interpretation) -> bytes:
    """Return what the history has of the source from now on, and the turn's progress in case this replica dies."""
    message = interpretation.message
    kept = [f"message:{message.message_id}", encode_message(message).decode()]
    live.settled = live.record.interprets.off if live.record.interprets is not None else 0
    return msgspec.json.encode(
        {"set": [*kept, f"turn:{live.record.turn_id}", encode_turn(live.record).decode()]}
    )
