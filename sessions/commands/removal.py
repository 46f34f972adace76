"""Removes an exchange, a conversation, or all data of an owner, and tells all attached connections."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from sessions.commands.branches import BranchSwitcher
from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation, ConversationRegistry, ShieldedChanges
from sessions.errors import Busy, Conflict, NotFound
from sessions.events import Cause, Reason, Removed
from sessions.records import ContinuedReply, MessageRecord, Owner, TurnRecord, status_of
from sessions.replicas.forwarder import Forwarder
from sessions.running import runner
from sessions.store.history import StaleFacts
from sessions.store.storage import Storage
from sessions.turn.turn import Turn

ATTEMPTS = 5
"""Attempts to delete while new turns begin; the last one deletes those, too."""
ROUNDS = 3
"""Rounds that look for new conversations, which a client may keep making."""


def cancel_all(conversation: Conversation) -> list[Turn]:
    """Cancel all turns of a conversation, and refuse messages on their way; return all of them."""
    cancelled_turns = [*conversation.turns, *conversation.accepting]
    for live in cancelled_turns:
        live.revoked = True
        runner.cancel(conversation, live, Cause.CLIENT)
    return cancelled_turns


class HistoryRemover:
    """Removes exchanges, conversations, and all data of an owner, here or at the replica that runs the turn. Methods raise Refused."""

    def __init__(
        self,
        storage: Storage,
        *,
        directory: ConversationRegistry,
        forwarder: Forwarder,
        brancher: BranchSwitcher,
        changes: ShieldedChanges,
    ) -> None:
        self._storage = storage
        self._history = storage.history
        self._directory = directory
        self._forwarder = forwarder
        self._brancher = brancher
        self._changes = changes

    async def take_back(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Remove an exchange once its turn has ended; does nothing if there is none.

        For a turn that continued a reply, what it added is removed, and all attached connections get the history.
        """
        conversation = self._directory.open(owner, conversation_id)
        await self._changes.complete(conversation, self._take_back(conversation, turn_id))

    async def _take_back(self, conversation: Conversation, turn_id: str) -> None:
        if (live := conversation.turn(turn_id)) is not None:
            await runner.ended(live)
        async with conversation.write_lock:
            meta = await self._history.load(conversation.keys)
            record = await self._history.turn(conversation.keys, turn_id)
            if meta is None or record is None or record.done is None:
                return
            removed = Removed(conversation_id=conversation.conversation_id, turn_id=turn_id, seq=meta.seq + 1)
            try:
                if not await self._undo(conversation, record, removed):
                    return
            except StaleFacts:
                raise Busy("The conversation has just changed; try again.") from None
            conversation.note_change()
            if conversation.published.seq == removed.seq - 1:
                conversation.publish_removed(removed)
        # Otherwise earlier events of other replicas are still on their way here, or one published this one first.
        await catch_up_to(self._history, conversation, meta.epoch, removed.seq)
        if record.continues is not None:
            await self._brancher.publish(conversation, but=None)

    async def _undo(self, conversation: Conversation, record: TurnRecord, removed: Removed) -> bool:
        """Remove a turn's exchange, or what it added to a reply; False if there is none. Raises Conflict, StaleFacts."""
        keys, base = conversation.keys, record.continues
        reply = await self._history.message(keys, record.reply_id)
        if reply is None:
            return False
        if reply.turn_id != record.turn_id:
            if await self._added_nothing(conversation, record):
                return False
            raise Conflict("Another turn continued this reply; only the last one can be rolled back.")
        if base is None:
            return await self._history.remove(keys, record, removed)
        before = await self._history.turn(keys, base.turn_id)
        return await self._history.remove(keys, record, removed, before=_as_before(reply, base, before))

    async def _added_nothing(self, conversation: Conversation, record: TurnRecord) -> bool:
        """Return whether a turn that continued a reply added nothing, or was rolled back."""
        base, done = record.continues, record.done
        if base is None or done is None:
            return False
        is_bare = (done.chars, done.reasoning_chars) == (base.chars, base.reasoning)
        return is_bare or await self._history.is_removed(conversation.keys, record.turn_id)

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        """Cancel a conversation's turns at once; return when it is gone and attached connections are notified."""
        conversation = self._directory.open(owner, conversation_id)
        cancelled_turns = cancel_all(conversation)
        await self._changes.complete(conversation, self._delete(conversation, cancelled_turns))

    async def _delete(self, conversation: Conversation, cancelled_turns: list[Turn]) -> None:
        epoch = await self._history.epoch(conversation.keys)
        for attempts_left in reversed(range(ATTEMPTS)):
            if await self._forwarder.delete(conversation):
                conversation.publish_deleted(epoch)
                return
            try:
                await self._delete_here(conversation, cancelled_turns, epoch=epoch, is_last=not attempts_left)
            except StaleFacts:
                cancelled_turns = cancel_all(conversation)
            else:
                return

    async def _delete_here(
        self, conversation: Conversation, cancelled_turns: list[Turn], *, epoch: str, is_last: bool
    ) -> None:
        """Remove a conversation once `cancelled_turns` ended, and notify attached connections.

        `epoch`: the one it had when this was requested, or empty. Raises StaleFacts if another turn has begun, unless this is the
        last attempt.
        """
        for live in cancelled_turns:
            await runner.ended(live)
        async with conversation.write_lock:
            shown = await self._storage.images.all_of(conversation.keys)
            await self._storage.sharing.take_back(conversation.owner, conversation.conversation_id)
            epoch = (
                await self._history.delete(conversation.keys, with_turns=is_last) or epoch
            )  # another request may have been faster
            if not epoch:
                raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
        await self._storage.images.forget_uploads(
            conversation.owner, shown
        )  # they would outlive the conversation by up to an hour
        await self._storage.index.forget(conversation.owner, conversation.conversation_id)
        conversation.publish_deleted(epoch)

    async def erase(self, owner: Owner) -> AsyncIterator[str]:
        """Erase all stored data of an owner, and yield the id of each removed conversation; a repeated request continues.

        All keys of the store are scanned once, and again only while clients of the person have conversations of their own.
        Counts of limits stay: they are numbers, expire within a day, and erasing must not reset them.
        """
        await self._storage.images.forget(owner)
        is_thorough = True
        holders = {owner}
        for _ in range(ROUNDS):
            found = is_former = False
            async for one in self._storage.belongings.conversations(owner, unlisted=is_thorough):
                holders.add(one.holder)
                if await self._erase(one.holder, one.conversation_id):
                    found, is_former = True, is_former or one.holder != owner
                    yield one.conversation_id
            if not found:
                await self._storage.images.forget(owner)  # and what was sent meanwhile
                for holder in holders:
                    await self._storage.ledger.forget(str(holder))
                return
            is_thorough = is_former
        raise Busy(
            "New conversations appeared during the erasure. Stop the clients that still send, and try again."
        )

    async def _erase(self, owner: Owner, conversation_id: str) -> bool:
        try:
            with self._directory.using(owner, conversation_id):
                await self.delete(owner, conversation_id)
        except NotFound:  # it expired, or another request was faster
            await self._storage.index.forget(owner, conversation_id)
            return False
        return True


def _as_before(reply: MessageRecord, base: ContinuedReply, turn: TurnRecord | None) -> MessageRecord:
    """Return a reply as it was before another turn continued it."""
    done = None if turn is None else turn.done
    return msgspec.structs.replace(
        base.cut(reply),
        turn_id=base.turn_id,
        status=status_of(done.reason if done is not None else Reason.INTERRUPTED),
        usage=None if done is None else done.usage,
        model=None if done is None else done.model,
        calls=(),
    )
