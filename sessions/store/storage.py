"""Puts together a replica's access to the store: one object for each part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.limits.shares import Subject
from sessions.records import Owner
from sessions.store.client import Durability
from sessions.store.history import History, Notes
from sessions.store.images import Images
from sessions.store.index import Index, Search
from sessions.store.journal import Compaction, Journal
from sessions.store.ledger import JOURNAL_S, Admission, Ledger, Memory, StoreFull
from sessions.store.owner_data import OwnerData, Sharing
from sessions.store.ownership import Ownership, RunningTurn


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's storage. `unsettled`: its turns of which it is not known whether the store accepted them."""

    history: History
    notes: Notes
    index: Index
    images: Images
    search: Search
    sharing: Sharing
    belongings: OwnerData
    journal: Journal
    ownership: Ownership
    compaction: Compaction
    ledger: Ledger
    unsettled: set[str]

    @classmethod
    def of(
        cls,
        client: Redis,
        *,
        replica: str,
        ttl_s: float,
        durability: Durability = Durability.MEMORY,
        priority_client: Redis | None = None,
        most_bytes: int | None = None,
    ) -> Self:
        """`ttl_s`: seconds for which a conversation is kept after its last turn.

        `most_bytes`: how much each of the store's servers may hold; None: its own limit.

        `priority_client`: a separate client for the lease and for ends of turns, so that they do not wait behind requests.
        """
        index = Index(client, ttl_s=ttl_s)
        ledger = Ledger(client, Memory(client, most_bytes=most_bytes))
        ownership = Ownership(client, replica=replica, priority_client=priority_client)
        history = History(client, ttl_s=ttl_s, replica=replica, durability=durability, ledger=ledger)
        images = Images(client, ledger=ledger)
        return cls(
            history=history,
            notes=Notes(client, ttl_s=ttl_s, ledger=ledger),
            index=index,
            images=images,
            search=Search(client),
            sharing=Sharing(client, history=history, ttl_s=ttl_s),
            belongings=OwnerData(client, history=history, images=images),
            journal=Journal(client, replica=replica),
            ownership=ownership,
            compaction=Compaction(client, ttl_s=ttl_s),
            ledger=ledger,
            unsettled=set(),
        )

    async def register_turn(
        self,
        owner: Owner,
        conversation_id: str,
        turn_id: str,
        *,
        subject: Subject | None = None,
        size: int = 0,
    ) -> None:
        """List a turn and its conversation, in one round trip: a reaper finds it then, whatever happens to this replica.

        `subject`: whose ledgers take the `size` of a new message, in bytes; None: the turn continues what was accepted. Raises
        StoreDown, StoreFull.
        """
        admissions: Sequence[Admission] = ()
        if subject is not None:
            admissions = await self.ledger.admissions(subject, size, lifetime_s=JOURNAL_S)
        turn = RunningTurn(
            owner=owner, conversation_id=conversation_id, turn_id=turn_id, replica=self.ownership.replica
        )

        def queue_writes(pipe: Pipeline) -> None:
            own = next(iter(admissions), None)
            self.index.queue_touch(pipe, owner=owner, conversation_id=conversation_id, admission=own)
            for admission in admissions[1:]:
                admission.queue(pipe)

        answers = await self.ownership.add(turn, queue_writes=queue_writes)
        try:
            self.ledger.check(admissions, answers)
        except StoreFull:
            await self.ownership.discard(turn_id)
            raise

    def over(self, priority_client: Redis, *, ttl_s: float, durability: Durability) -> Self:
        """Return the same, with a separate client for the writes of running turns."""
        replica = self.ownership.replica
        return msgspec.structs.replace(
            self,
            history=History(
                priority_client, ttl_s=ttl_s, replica=replica, durability=durability, ledger=self.ledger
            ),
            journal=Journal(priority_client, replica=replica),
            compaction=Compaction(priority_client, ttl_s=ttl_s),
        )
