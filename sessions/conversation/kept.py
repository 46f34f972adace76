"""Turns as the store has them, for doors whose clients come back for one: what was asked, what came of it, what was said before."""

from __future__ import annotations

import msgspec

from sessions.records import MessageRecord, Owner, TurnRecord
from sessions.store.history.history import History
from sessions.store.history.keys import Keys
from sessions.store.history.notes import Notes


class KeptTurn(msgspec.Struct, frozen=True):
    """A turn. `reply`: None until it has ended; `note`: what its door keeps beside it; `epoch`: of its conversation."""

    record: TurnRecord
    reply: MessageRecord | None
    note: bytes
    epoch: str


class KeptTurns:
    """Reads them, each for its owner alone. Methods raise StoreDown."""

    def __init__(self, history: History, notes: Notes) -> None:
        self._history = history
        self._notes = notes

    async def turn(self, owner: Owner, conversation_id: str, turn_id: str) -> KeptTurn | None:
        """A turn that a door made a note of; None where this owner has no such."""
        keys = Keys.of(owner, conversation_id)
        record, note = await self._history.turn(keys, turn_id), await self._notes.get(keys, turn_id)
        if record is None or note is None:
            return None
        reply = None if record.done is None else await self._history.message(keys, record.reply_id)
        if record.done is not None and reply is None:
            return None  # it was taken out of the history
        return KeptTurn(record, reply, note, await self._history.epoch(keys))

    async def behind(self, owner: Owner, conversation_id: str, turn: KeptTurn) -> KeptTurn | None:
        """The turn that follows the calls of one, without a note; None where none does, or its calls are open."""
        keys = Keys.of(owner, conversation_id)
        record = await self._history.follower(keys, turn.record)
        if record is None:
            return None
        reply = None if record.done is None else await self._history.message(keys, record.reply_id)
        return KeptTurn(record, reply, b"", turn.epoch)

    async def awaits_calls(self, owner: Owner, conversation_id: str, turn_id: str) -> bool:
        """Whether the turn that follows the calls of one is still to be accepted."""
        keys = Keys.of(owner, conversation_id)
        record, meta = await self._history.turn(keys, turn_id), await self._history.load(keys)
        if record is None or meta is None or meta.running is None:
            return False
        return await self._history.follower(keys, record) is None

    async def path(
        self, owner: Owner, conversation_id: str, message_id: str, *, most_bytes: int
    ) -> tuple[list[MessageRecord], bool]:
        """The messages up to one, the oldest first, and whether more were before. The first is the one that exceeds `most_bytes`."""
        branch = await self._history.branch(
            Keys.of(owner, conversation_id), leaf=message_id, most_bytes=most_bytes
        )
        return branch.messages, branch.older is not None

    async def is_empty(self, owner: Owner, conversation_id: str) -> bool:
        """Whether a conversation has no message."""
        meta = await self._history.load(Keys.of(owner, conversation_id))
        return meta is not None and not meta.messages

    async def forget(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Forgets the note beside a turn."""
        await self._notes.forget(Keys.of(owner, conversation_id), turn_id)

    async def note(self, owner: Owner, conversation_id: str, turn_id: str, note: bytes) -> bool:
        """Keeps a note beside a turn, in the place of the owner's oldest ones; False where this owner has no such turn."""
        return await self._notes.keep(owner, conversation_id, turn_id, note)
