"""Takes an exchange, or a whole conversation, out of the history, and tells all who are attached."""

from __future__ import annotations

import msgspec

from sessions import running
from sessions.conversation import Conversation, LiveTurn, Subscriber
from sessions.errors import Busy, NotFound
from sessions.events import Cause, Deleted, Removed
from sessions.history import History, Moved
from sessions.index import Index


def doom(conversation: Conversation) -> list[LiveTurn]:
    """Cancels all turns of a conversation, and has refused what is on its way to be one; gives them all."""
    doomed = [*conversation.turns, *conversation.arriving]
    for live in doomed:
        live.revoked = True
        running.cancel(conversation, live, Cause.CLIENT)
    return doomed


class Remover:
    """Removes. Its methods raise Refused."""

    def __init__(self, *, history: History, index: Index) -> None:
        self._history = history
        self._index = index

    async def take_back(self, conversation: Conversation, turn_id: str) -> None:
        """Removes an exchange, once its turn is over; nothing where there is no such."""
        if (live := conversation.turn(turn_id)) is not None:
            await running.ended(live)
        async with conversation.writing:
            meta = await self._history.load(conversation.keys)
            record = await self._history.turn(conversation.keys, turn_id)
            if meta is None or record is None or record.done is None:
                return
            removed = Removed(conversation_id=conversation.conversation_id, turn_id=turn_id, seq=meta.seq + 1)
            try:
                if not await self._history.remove(conversation.keys, record, removed):
                    return
            except Moved:
                raise Busy("The conversation changed in this moment; try again.") from None
            conversation.publish_removed(removed)
            conversation.forget()

    async def delete(
        self, conversation: Conversation, doomed: list[LiveTurn], *, by: Subscriber, ref: str | None
    ) -> None:
        """Removes a conversation when the turns that it had are over; `by` asked for it, under `ref`."""
        for live in doomed:
            await running.ended(live)
        async with conversation.writing:
            if not await self._history.delete(conversation.keys):
                raise NotFound(f"No conversation {conversation.conversation_id!r}.")
            conversation.forget()
        await self._index.forget(conversation.owner, conversation.conversation_id)
        told = Deleted(conversation_id=conversation.conversation_id)
        for attached in conversation.subscribers - {by}:
            attached.publish(told)
        by.publish(msgspec.structs.replace(told, ref=ref))
