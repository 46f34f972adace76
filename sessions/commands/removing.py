"""Takes an exchange, or a whole conversation, out of the history, and tells all who are attached."""

from __future__ import annotations

from sessions.conversation.conversation import Conversation
from sessions.conversation.directory import Directory
from sessions.conversation.following import follow_up_to
from sessions.conversation.guarding import Changes
from sessions.errors import Busy, NotFound
from sessions.events import Cause, Removed
from sessions.records import Owner
from sessions.replicas.forwarding import Forwarder
from sessions.running import runner
from sessions.store.history.compacting import Compaction
from sessions.store.history.history import History
from sessions.store.history.index import Index
from sessions.store.history.transactions import Moved
from sessions.turn.live_turn import LiveTurn

ATTEMPTS = 5
"""How often a turn that began meanwhile is ended first; one behind them loses its conversation."""


def doom(conversation: Conversation) -> list[LiveTurn]:
    """Cancels all turns of a conversation, and has refused what is on its way to be one; gives them all."""
    doomed = [*conversation.turns, *conversation.arriving]
    for live in doomed:
        live.intake.revoked = True
        runner.cancel(conversation, live, Cause.CLIENT)
    return doomed


class Deleter:
    """Removes a whole conversation, here or where its turn runs."""

    def __init__(
        self,
        *,
        directory: Directory,
        history: History,
        forwarder: Forwarder,
        remover: Remover,
        changes: Changes,
    ) -> None:
        self._directory = directory
        self._history = history
        self._forwarder = forwarder
        self._remover = remover
        self._changes = changes

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        """Cancels its turns at once; returns when it is gone and all who are attached were told. Raises Refused."""
        conversation = self._directory.open(owner, conversation_id)
        doomed = doom(conversation)
        await self._changes.carry_through(conversation, self._delete(conversation, doomed))

    async def _delete(self, conversation: Conversation, doomed: list[LiveTurn]) -> None:
        epoch = await self._history.epoch(conversation.keys)
        for attempts_left in reversed(range(ATTEMPTS)):
            if await self._forwarder.delete(conversation):
                conversation.publish_deleted(epoch)
                return
            try:
                await self._remover.delete(conversation, doomed, epoch=epoch, is_last=not attempts_left)
            except Moved:
                doomed = doom(conversation)
            else:
                return


class Remover:
    """Removes. Its methods raise Refused."""

    def __init__(self, *, history: History, index: Index, compaction: Compaction) -> None:
        self._history = history
        self._index = index
        self._compaction = compaction

    async def take_back(self, conversation: Conversation, turn_id: str) -> None:
        """Removes an exchange, once its turn is over; nothing where there is no such."""
        if (live := conversation.turn(turn_id)) is not None:
            await runner.ended(live)
        async with conversation.locks.writing:
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
            conversation.forget()
            if conversation.published.seq == removed.seq - 1:
                conversation.publish_removed(removed)
        # Else what other replicas wrote before it is still on its way here, or they were asked the same and told it.
        await follow_up_to(self._history, conversation, meta.epoch, removed.seq)

    async def delete(
        self, conversation: Conversation, doomed: list[LiveTurn], *, epoch: str, is_last: bool = True
    ) -> None:
        """Removes a conversation when the turns that it had are over, and tells all who are attached.

        `epoch`: that it was there in when this was asked for; else empty. Raises Moved where another turn has begun,
        unless this is the last attempt.
        """
        for live in doomed:
            await runner.ended(live)
        async with conversation.locks.writing:
            epoch = (
                await self._history.delete(conversation.keys, with_turns=is_last) or epoch
            )  # another one may have been faster
            if not epoch:
                raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
        await self._index.forget(conversation.owner, conversation.conversation_id)
        await self._compaction.forget(conversation.keys)
        conversation.publish_deleted(epoch)
