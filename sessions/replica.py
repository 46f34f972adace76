"""The life of a replica: its background tasks, and its drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog

from sessions.composition import ReplicaParts
from sessions.conversation.conversation import Conversation
from sessions.errors import StoreDown
from sessions.running import runner
from sessions.store.client import load_scripts
from sessions.store.ownership import RENEW_S
from sessions.store.server_config import retry_until_available

SAVE_S = 5.0

_log = structlog.get_logger("midstream.sessions")


class Replica:
    """Runs the parts between start and stop."""

    def __init__(self, parts: ReplicaParts) -> None:
        self._parts = parts
        self._ownership = parts.storage.ownership

    @asynccontextmanager
    async def running(self, *, alone: bool) -> AsyncIterator[None]:
        """Serve while the context lasts. `alone`: no other replica can use this store. Raises StoreDown."""
        await retry_until_available(partial(self._begin, alone=alone))
        async with self._parts.tasks.running():
            chores = [self._parts.tasks.begin(chore) for chore in self._background_tasks()]
            try:
                if alone:
                    await self._close_orphans()
                yield
                await self.drain(0.0)
                await self._parts.turns.saved(within_s=SAVE_S)
            finally:
                self._parts.turns.stop()
                for task in chores:
                    task.cancel()
        await self._leave()

    async def _begin(self, *, alone: bool) -> None:
        await load_scripts(self._parts.client)
        await self._ownership.renew()
        if alone:
            await self._ownership.forget_other_leases()

    async def _close_orphans(self) -> None:
        """Close or continue the turns that an earlier process left. If the store refuses, the reaper tries again later."""
        try:
            await self._parts.reaper.reap()
        except StoreDown as trouble:
            _log.warning("orphaned turns of earlier process not closed", why=str(trouble))

    async def drain(self, within_s: float) -> None:
        """Refuse new turns, let running ones end within a time, then end them as interrupted."""
        await asyncio.gather(self._parts.turns.drain(within_s), self._parts.ephemeral.drain(within_s))

    def unwatch(self, conversation: Conversation) -> None:
        """Stop watching a conversation if its last connection has left."""
        if conversation.others.watching and not conversation.subscribers:
            leaving = self._parts.tasks.begin(self._parts.watching.end(conversation))
            leaving.add_done_callback(lambda _: runner.cancel_unattended(conversation))

    def _background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        peers, priority_client = self._parts, self._parts.priority_client
        if peers.channels is not None:
            yield from (peers.channels.run(), peers.relay.listen_to_shards())
        yield from (
            priority_client.journal.run(),
            priority_client.ownership.keep(),
            peers.reaper.watch(),
            peers.relay.listen(),
            peers.relay.fill(),
            peers.rpc.run(self._parts.orders.take),
            self._parts.storage.compaction.run(),
            self._parts.storage.ledger.run(),
            self._parts.storage.ledger.memory.run(),
            self._check_peers(),
        )

    async def _check_peers(self) -> None:
        """Do periodically what lost messages would have prompted, until cancelled."""
        taken = 0
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                taken = await self._drop_taken_over(taken)
                for late in await self._parts.watching.reconcile():
                    self._parts.relay.catch_up(late)
            except StoreDown:
                continue
            except Exception:  # noqa: BLE001 - a task's boundary: the next check finds what this one missed
                _log.exception("peer check failed")
            for conversation in self._parts.directory.with_turns():
                runner.cancel_unattended(conversation)

    async def _drop_taken_over(self, taken: int) -> int:
        """Give up waiting turns that others took over after the lease expired; return the new `taken`. Raises StoreDown.

        `taken`: how often the lease had been taken at the last check. The check waits first: a replica that saw the lease expire
        may still be about to take over.
        """
        now = self._ownership.taken
        if taken != now:
            await asyncio.sleep(RENEW_S)
            await self._parts.turns.check_waits()
        return now

    async def _leave(self) -> None:
        with suppress(StoreDown):  # unwritten charges are counted when those conversations are weighed again
            await self._parts.storage.ledger.settle()
        try:
            await self._ownership.release_lease()
        except StoreDown:
            _log.warning("the lease could not be released; it expires by itself")
