"""Lists a turn and its conversation in the store before the turn is accepted."""

from __future__ import annotations

from functools import partial

from sessions.conversation.conversation import Conversation
from sessions.store.history.index import Index
from sessions.store.ownership import Ownership, RunningTurn


class Announcer:
    """From `announce` on, a reaper finds the turn, whatever happens to this replica."""

    def __init__(self, *, ownership: Ownership, index: Index) -> None:
        self._ownership = ownership
        self._index = index

    async def announce(self, conversation: Conversation, turn_id: str) -> None:
        """List both in one round trip. Raises StoreDown."""
        turn = RunningTurn(
            owner=conversation.owner,
            conversation_id=conversation.conversation_id,
            turn_id=turn_id,
            replica=self._ownership.replica,
        )
        touch = partial(self._index.queue_touch, owner=turn.owner, conversation_id=turn.conversation_id)
        await self._ownership.add(turn, beside=touch)

    async def withdraw(self, turn_id: str) -> None:
        """Remove a turn that was not accepted, or has ended. Raises StoreDown."""
        await self._ownership.discard(turn_id)
