"""Puts together a replica's access to the store: one object for each part of it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.limits.shares import Subject
from sessions.records import Owner
from sessions.store.client import Durability
from sessions.store.history import History, Notes
from sessions.store.images import Images
from sessions.store.index import Index, Search
from sessions.store.journal import Journal
from sessions.store.ledger import JOURNAL_S, Admission, Ledger, Memory, StoreFull
from sessions.store.owner_data import OwnerData, Sharing
from sessions.store.ownership import Ownership, RunningTurn


class Storage:
    """One replica's access to the store."""

    def __init__(
        self,
        client: Redis,
        *,
        replica: str,
        ttl_s: float,
        durability: Durability = Durability.MEMORY,
        priority_client: Redis | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """`ttl_s`: seconds for which a conversation is kept after its last turn.

        `most_bytes`: how much each of the store's servers may hold; None: its own limit.

        `priority_client`: a separate client for the lease and for ends of turns, so that they do not wait behind requests.
        """
        self.ledger = ledger = Ledger(client, Memory(client, most_bytes=most_bytes))
        self.history = History(client, ttl_s=ttl_s, replica=replica, durability=durability, ledger=ledger)
        self.notes = Notes(client, ttl_s=ttl_s, ledger=ledger)
        self.index = Index(client, ttl_s=ttl_s)
        self.images = Images(client, ledger=ledger)
        self.search = Search(client)
        self.sharing = Sharing(client, history=self.history, ttl_s=ttl_s)
        self.belongings = OwnerData(client, history=self.history, images=self.images)
        self.journal = Journal(client, replica=replica)
        self.ownership = Ownership(client, replica=replica, priority_client=priority_client)
        self.unsettled: set[str] = set()
        """The ids of this replica's turns that the store may or may not have accepted."""

    async def register_turn(
        self,
        owner: Owner,
        conversation_id: str,
        turn_id: str,
        *,
        subject: Subject | None = None,
        size: int = 0,
    ) -> None:
        """Record a turn and list its conversation, in one round trip: a reaper finds it even if this replica dies.

        `subject`: whose ledgers take the `size` of a new message, in bytes; None: the turn has no new message. Raises StoreDown,
        StoreFull.
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
        """Return a copy that uses `priority_client` for the writes of running turns."""
        replica = self.ownership.replica
        same = copy(self)
        same.history = History(
            priority_client, ttl_s=ttl_s, replica=replica, durability=durability, ledger=self.ledger
        )
        same.journal = Journal(priority_client, replica=replica)
        return same
