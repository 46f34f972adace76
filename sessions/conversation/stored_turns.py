"""Stored turns, for endpoints whose clients fetch one later: what was asked, the outcome, and what was said before."""

from __future__ import annotations

import msgspec

from sessions.records import MessageRecord, Meta, Owner, TurnRecord
from sessions.store.history.codec import Keys
from sessions.store.history.history import History
from sessions.store.history.notes import Notes


class StoredTurn(msgspec.Struct, frozen=True):
    """A turn. `reply`: None until it has ended; `note`: what its endpoint keeps with it; `epoch`: of its conversation."""

    record: TurnRecord
    reply: MessageRecord | None
    note: bytes
    epoch: str


class TurnReader:
    """Reads turns, each for its owner only. Methods raise StoreDown."""

    def __init__(self, history: History, notes: Notes) -> None:
        self._history = history
        self._notes = notes

    async def turn(self, owner: Owner, conversation_id: str, turn_id: str) -> StoredTurn | None:
        """Return a turn that an endpoint kept a note of; None if this owner has none."""
        keys = Keys.of(owner, conversation_id)
        record, note = await self._history.turn(keys, turn_id), await self._notes.get(keys, turn_id)
        if record is None or note is None:
            return None
        reply = None if record.done is None else await self._history.message(keys, record.reply_id)
        if record.done is not None and reply is None:
            return None  # it was removed from the history
        return StoredTurn(record, reply, note, await self._history.epoch(keys))

    async def following(self, owner: Owner, conversation_id: str, turn: StoredTurn) -> StoredTurn | None:
        """Return the turn that follows a turn's calls, without a note; None if there is none, or calls are open."""
        keys = Keys.of(owner, conversation_id)
        record = await self._history.follower(keys, turn.record)
        if record is None:
            return None
        reply = None if record.done is None else await self._history.message(keys, record.reply_id)
        return StoredTurn(record, reply, b"", turn.epoch)

    async def awaits_calls(self, owner: Owner, conversation_id: str, turn_id: str) -> bool:
        """Return whether the turn that follows another one's calls is not accepted yet."""
        keys = Keys.of(owner, conversation_id)
        record, meta = await self._history.turn(keys, turn_id), await self._history.load(keys)
        if record is None or meta is None or meta.running is None:
            return False
        return await self._history.follower(keys, record) is None

    async def path(
        self, owner: Owner, conversation_id: str, message_id: str | None = None, *, most_bytes: int
    ) -> tuple[list[MessageRecord], bool]:
        """Return the messages up to one, oldest first, and whether there are older ones. None: up to the active leaf.

        The first message is the one that exceeds `most_bytes`.
        """
        branch = await self._history.branch(
            Keys.of(owner, conversation_id), leaf=message_id, most_bytes=most_bytes
        )
        return branch.messages, branch.older is not None

    async def conversation(self, owner: Owner, conversation_id: str) -> tuple[Meta, bytes | None] | None:
        """Return the facts of a conversation and its description; None if this owner has none."""
        keys = Keys.of(owner, conversation_id)
        meta = await self._history.load(keys)
        return None if meta is None else (meta, await self._notes.description(keys))

    async def describe(
        self, owner: Owner, conversation_id: str, text: bytes, *, new: bool = False, group: str = ""
    ) -> bool:
        """Describe a conversation, a `new` one without messages or one that exists; False if a new one exists, or an old one does not."""
        return await self._notes.describe(owner, conversation_id, text, new=new, group=group)

    async def is_empty(self, owner: Owner, conversation_id: str) -> bool:
        """Return whether a conversation has no messages."""
        meta = await self._history.load(Keys.of(owner, conversation_id))
        return meta is not None and not meta.messages

    async def forget(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Delete the note of a turn."""
        await self._notes.forget(Keys.of(owner, conversation_id), turn_id)

    async def note(self, owner: Owner, conversation_id: str, turn_id: str, note: bytes) -> bool:
        """Keep a turn's note, deleting the owner's oldest beyond the limit; False if this owner has no such turn."""
        return await self._notes.keep(owner, conversation_id, turn_id, note)
