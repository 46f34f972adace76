"""Lists a turn and its conversation in the store before the turn is accepted."""

from __future__ import annotations

from sessions.conversation.conversation import Conversation
from sessions.store.history.index import Index
from sessions.store.ownership import Ownership, RunningTurn


class Announcer:
    """From `announce` on, a reaper finds the turn, whatever happens to this replica."""

    def __init__(self, *, ownership: Ownership, index: Index) -> None:
        self._ownership = ownership
        self._index = index

    async def announce(self, conversation: Conversation, turn_id: str) -> None:
        """Raises StoreDown."""
        await self._ownership.add(
            RunningTurn(
                owner=conversation.owner,
                conversation_id=conversation.conversation_id,
                turn_id=turn_id,
                replica=self._ownership.replica,
            )
        )
        await self._index.touch(conversation.owner, conversation.conversation_id)

    async def withdraw(self, turn_id: str) -> None:
        """Remove a turn that was not accepted, or has ended. Raises StoreDown."""
        await self._ownership.discard(turn_id)
