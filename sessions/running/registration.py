"""Lists a turn and its conversation in the store before the turn is accepted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from redis.asyncio.client import Pipeline

from sessions.conversation.conversation import Conversation
from sessions.fair_share import Subject
from sessions.store.history.index import Index
from sessions.store.ledger import (
    COPIES,
    JOURNAL_S,
    MESSAGE_BYTES,
    Admission,
    Ledger,
    StoreFull,
)
from sessions.store.ownership import Ownership, RunningTurn
from sessions.turn.message_request import GenerationConfig, MessageRequest


class TurnRegistrar:
    """From `register` on, a reaper finds the turn, whatever happens to this replica."""

    def __init__(self, *, ownership: Ownership, index: Index, ledger: Ledger) -> None:
        self._ownership = ownership
        self._index = index
        self._ledger = ledger

    async def register_message(
        self, conversation: Conversation, turn_id: str, send: MessageRequest, generation: GenerationConfig
    ) -> None:
        """List the turn of a new message, if the store has room for it, in one round trip. Raises StoreDown, StoreFull."""
        subject, size = subject_of(conversation, send), size_of(send, generation)
        admissions = await self._ledger.admissions(subject, size, lifetime_s=JOURNAL_S)
        try:
            await self._register(conversation, turn_id, admissions)
        except StoreFull:
            await self.withdraw(turn_id)
            raise

    async def register(self, conversation: Conversation, turn_id: str) -> None:
        """List a turn that continues what was accepted, and its conversation, in one round trip. Raises StoreDown."""
        await self._register(conversation, turn_id, [])

    async def _register(
        self, conversation: Conversation, turn_id: str, admissions: Sequence[Admission]
    ) -> None:
        turn = RunningTurn(
            owner=conversation.owner,
            conversation_id=conversation.conversation_id,
            turn_id=turn_id,
            replica=self._ownership.replica,
        )
        own, others = next(iter(admissions), None), admissions[1:]

        def queue_writes(pipe: Pipeline) -> None:
            self._index.queue_touch(
                pipe, owner=turn.owner, conversation_id=turn.conversation_id, admission=own
            )
            for admission in others:
                admission.queue(pipe)

        answers = await self._ownership.add(turn, queue_writes=queue_writes)
        self._ledger.check(admissions, answers)

    async def withdraw(self, turn_id: str) -> None:
        """Remove a turn that was not accepted, or has ended. Raises StoreDown."""
        await self._ownership.discard(turn_id)


def subject_of(conversation: Conversation, send: MessageRequest) -> Subject:
    """Return whose ledgers count a message."""
    return Subject(str(conversation.owner), send.group)


def size_of(send: MessageRequest, generation: GenerationConfig) -> int:
    """Return how many bytes a message will take in the store, approximately."""
    brought = 0 if generation.given is None else len(msgspec.json.encode(generation.given))
    size = COPIES * (len(send.content.encode()) + brought) + len((generation.system or "").encode())
    return MESSAGE_BYTES + size
