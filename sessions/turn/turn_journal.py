"""Writes one running turn's events to the journal: at once while the store is fast, later if it is slow.

Events that the store did not take in time stay here with their seqs, and are written with the next ones or by `catch_up`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import Journalled, encode
from sessions.store.history.journal import Entry, Journal
from sessions.store.ledger import EVENT_BYTES

PATIENCE_S = 0.25
COUNTED_BYTES = 64 * 1024
"""Bytes of events that are counted at once."""
FAULTS = 3
"""Consecutive writes that a working store may refuse before the turn is ended."""


class TurnJournal:
    """The entries of one turn that are not known to be stored. At most one write is under way."""

    def __init__(
        self,
        journal: Journal,
        *,
        keys: tuple[str, str],
        turn_id: str,
        wrote: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`wrote`: is given the bytes of its events, many at a time."""
        self._journal = journal
        self._keys = keys
        self._turn_id = turn_id
        self._unwritten: list[Entry] = []
        self._writing: asyncio.Future[bool] | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._sent = 0
        self._late = False
        self._dropped = False
        self._faults = 0
        self._wrote = wrote
        self._uncounted = 0
        self.watched = False
        """Whether other replicas watched the conversation at the last write."""

    def lacks(self, seq: int) -> bool:
        """Return whether an event up to `seq` is not known to be stored."""
        return any(entry.seq <= seq for entry in self._unwritten)

    async def write(self, event: Journalled, patch: bytes = b"") -> bool:
        """Write an event; return whether all is stored. Waits for the store, `PATIENCE_S` at most.

        `patch`: what else it changes in the conversation. Raises OwnershipLost, and StoreFault if the store keeps refusing the
        journal.
        """
        if self._dropped:
            raise OwnershipLost(self._turn_id)
        entry = Entry(event.seq, encode(event), patch)
        self._unwritten.append(entry)
        self._count(len(entry.event) + EVENT_BYTES)
        self._refuse_faults(self._collect())
        while self._unwritten and not self._late:
            self._begin()
            await self._settled(PATIENCE_S)
            self._refuse_faults(self._collect())
            self._late = self._late or self._writing is not None
        if self._dropped:  # during the write, in the queue of a turn that is given up
            raise OwnershipLost(self._turn_id)
        if self._unwritten:
            self._begin()
        return not self._unwritten

    async def catch_up(self) -> bool:
        """Try again to write what the store did not take in time; return whether all is stored. Waits and raises as `write` does."""
        self._refuse_faults(self._collect())
        if self._unwritten and not self._dropped:
            self._begin()
            await self._settled(PATIENCE_S)
            self._refuse_faults(self._collect())
        if self._dropped:
            raise OwnershipLost(self._turn_id)
        return not self._unwritten

    async def write_rest(self) -> None:
        """Wait until all is stored. Raises StoreDown, OwnershipLost."""
        while self._unwritten:
            self._begin()
            await self._settled(None)
            if (trouble := self._collect()) is not None:
                raise trouble

    def _count(self, size: int) -> None:
        self._uncounted += size
        if self._uncounted >= COUNTED_BYTES:
            self._wrote(self._uncounted)
            self._uncounted = 0

    def drop(self) -> None:
        """Stop writing; a write under way does not count."""
        if self._uncounted:
            self._wrote(self._uncounted)
            self._uncounted = 0
        self._dropped = True
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
            self._wake()
        self._unwritten.clear()

    def _begin(self) -> None:
        if self._writing is None:
            self._sent = len(self._unwritten)
            self._writing = self._journal.put_nowait(
                self._keys, self._turn_id, list(self._unwritten), on_written=self._wake
            )

    async def _settled(self, within_s: float | None) -> None:
        """Wait for the write that is under way, if there is one; a timeout leaves it under way."""
        if self._writing is not None and not self._writing.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout(within_s):
                    await waiter
            except TimeoutError:
                return
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        """Wake all who wait: tools of the turn write beside its text."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _refuse_faults(self, trouble: StoreDown | None) -> None:
        if isinstance(trouble, StoreFault) and self._faults >= FAULTS:
            raise trouble

    def _collect(self) -> StoreDown | None:
        """Drop the stored entries; return the failure of a write. Raises OwnershipLost."""
        if self._writing is None or not self._writing.done():
            return None
        writing, self._writing = self._writing, None
        try:
            self.watched = writing.result()
        except StoreDown as trouble:
            self._late = True
            self._faults = self._faults + 1 if isinstance(trouble, StoreFault) else 0
            return trouble
        except OwnershipLost:
            self._dropped = True
            raise
        self._late = False
        self._faults = 0
        del self._unwritten[: self._sent]
        return None
