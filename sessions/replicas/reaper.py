"""Closes turns whose replica is gone, or continues them here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import structlog

from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation, ConversationRegistry
from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import Removed
from sessions.limits.slots import as_service
from sessions.records import Meta, TurnRecord
from sessions.replicas.relay import Relay
from sessions.running.runner import close_orphaned
from sessions.store.codec import Keys
from sessions.store.history import queue_exit
from sessions.store.ownership import RunningTurn
from sessions.store.storage import Storage
from sessions.turn.tool_calls import ToolCalls
from sessions.turn.turn import NullSubscriber, Turn, WaitingTurn
from sessions.turn.turn_state import TurnMessageIds

COMEBACK_S = 60.0
"""How long a dead replica's clients have to reconnect, whatever grace period they asked for."""
REAP_S = 1.0
"""Pause between rounds. With a dead replica's lease, less than ten seconds."""
SLOW_S = 1.0
FAULTS = 3
"""Attempts to close a turn whose conversation can't be read, before it is left as it is."""

_log = structlog.get_logger("midstream.reaper")


class Reaper:
    """Closes orphaned turns, takes over those that wait for calls, and withdraws unsettled ones, whose senders saw a failure."""

    def __init__(self, storage: Storage, *, directory: ConversationRegistry, relay: Relay) -> None:
        self._storage = storage
        self._history = storage.history
        self._ownership = storage.ownership
        self._unsettled = storage.unsettled
        self._faults: Counter[str] = Counter()
        self._reaping = asyncio.Lock()
        self._directory = directory
        self._relay = relay
        self._continue: Callable[[Conversation, Turn], None] | None = None
        self.closed = 0
        """Turns that nobody ran any more, closed or continued here."""

    async def watch(self) -> None:
        """Reap until cancelled."""
        while True:
            await asyncio.sleep(REAP_S)
            try:
                await self.reap(within_s=SLOW_S)
            except StoreDown:
                continue
            except Exception:  # noqa: BLE001 - a task's boundary: one odd row must not end the service
                _log.exception("reaping failed")

    async def reap(self, *, within_s: float | None = None) -> int:
        """Close every orphaned turn; return their number.

        Raises StoreDown, also if the store takes longer than `within_s` to list them: when a store stalls, leases of living
        replicas expire. Concurrent calls wait for each other: a turn that is being taken over looks like an orphan, since it is
        listed and does not run yet.
        """
        async with self._reaping:
            with as_service():
                return await self._reap(within_s)

    async def _reap(self, within_s: float | None) -> int:
        try:
            async with asyncio.timeout(within_s):
                orphans = await self._ownership.orphans(self._directory.runs)
        except TimeoutError:
            raise StoreDown("The store is too slow to say which servers are alive.") from None
        await self._close_in_order(orphans)
        return len(orphans)

    async def _close_in_order(self, orphans: Sequence[RunningTurn]) -> None:
        """Close turns, each queued one after the one before it."""
        while orphans:
            left = [orphan for orphan in orphans if not await self._close(orphan)]
            if len(left) == len(orphans):
                return
            orphans = left

    async def _close(self, orphan: RunningTurn) -> bool:
        """Close a turn, or give it up; False if an earlier one has to be closed first."""
        try:
            return await self._try_to_close(orphan)
        except StoreFault as fault:
            self._note(orphan, fault.incident)
        except StoreDown:
            raise
        except Exception:  # noqa: BLE001 - one turn's boundary: the others are closed all the same
            _log.exception("turn not closed", turn_id=orphan.turn_id)
            self._note(orphan, "")
        if self._faults[orphan.turn_id] >= FAULTS:
            await self._forget(orphan)
        return True

    def _note(self, orphan: RunningTurn, incident: str) -> None:
        self._faults[orphan.turn_id] += 1
        if self._faults[orphan.turn_id] >= FAULTS:
            _log.error("orphaned turn left as it is", turn_id=orphan.turn_id, incident=incident)

    async def _forget(self, orphan: RunningTurn) -> None:
        await self._ownership.discard(orphan.turn_id, replica=orphan.replica)
        self._unsettled.discard(orphan.turn_id)
        del self._faults[orphan.turn_id]

    async def _try_to_close(self, orphan: RunningTurn) -> bool:
        keys = Keys.of(orphan.owner, orphan.conversation_id)
        if await self._take_over(orphan):
            self.closed += 1
            await self._forget(orphan)
            return True
        meta = await self._history.load(keys)
        record = await self._history.turn(keys, orphan.turn_id)
        if meta is not None and record is not None and orphan.turn_id in (meta.running, *meta.queue):
            if not await self._is_next(keys, meta, orphan):
                return False
            close = self._withdraw if orphan.turn_id in self._unsettled else self._end
            await close(orphan, keys, record, seq=meta.seq + 1)
        await self._forget(orphan)
        return True

    async def _is_next(self, keys: Keys, meta: Meta, orphan: RunningTurn) -> bool:
        """Return whether the turn is the running one, which the next in the queue becomes if none runs."""
        if meta.running == orphan.turn_id:
            return True
        return meta.running is None and await self._history.start(keys, orphan.turn_id)

    async def _withdraw(self, orphan: RunningTurn, keys: Keys, record: TurnRecord, *, seq: int) -> None:
        removed = Removed(conversation_id=orphan.conversation_id, turn_id=orphan.turn_id, seq=seq)
        await self._history.withdraw(keys, record, removed)
        self.closed += 1
        _log.info("refused turn withdrawn", turn_id=orphan.turn_id)
        events = await self._history.journal(keys, after_seq=record.accepted_seq - 1)
        self._relay.publish_turn(orphan, events)

    async def _end(self, orphan: RunningTurn, keys: Keys, record: TurnRecord, *, seq: int) -> None:
        events = await self._history.journal(keys, after_seq=record.accepted_seq)
        base = await self._history.base(keys, record)
        ending = close_orphaned(orphan.conversation_id, record, events, seq=seq, base=base)
        try:
            await self._history.finish(keys, ending)
        except OwnershipLost:
            return  # another reaper was faster
        self.closed += 1
        _log.info("orphaned turn closed", turn_id=orphan.turn_id, replica=orphan.replica)
        self._relay.publish_turn(orphan, [ending.done])

    def on_takeover(self, continue_turn: Callable[[Conversation, Turn], None]) -> None:
        """Set what continues turns that were taken over. Call it first."""
        self._continue = continue_turn

    async def _take_over(self, orphan: RunningTurn) -> bool:
        """Take over a turn that waits for calls; False if no turn of this id waits any more. Raises StoreDown."""
        with self._directory.using(orphan.owner, orphan.conversation_id) as conversation:
            kept = await self._history.following(conversation.keys)
            following = None if kept is None else WaitingTurn.decoded(kept)
            if following is None or following.record.turn_id != orphan.turn_id:
                return False
            return await self._take_over_as(conversation, following)

    async def _take_over_as(self, conversation: Conversation, old: WaitingTurn) -> bool:
        """A new turn id fences writes: those of a replica that only stalled are refused."""
        new = _renamed(old, conversation)
        record = new.record
        await self._storage.register_turn(conversation.owner, conversation.conversation_id, record.turn_id)
        watched = await self._history.continue_turn(
            conversation.keys, old.record.turn_id, next_id=record.turn_id, following=new.encoded()
        )
        if watched is None:
            await self._storage.ownership.discard(record.turn_id)
            return False
        message = await self._history.message(conversation.keys, record.message_id)
        meta = await self._history.load(conversation.keys) or Meta.new("")
        await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
        live = Turn.waiting(new, ToolCalls(message.calls if message is not None else ()), NullSubscriber())
        conversation.continue_turn(live, seq=meta.seq, watched=watched)
        _log.info("waiting turn taken over", turn_id=record.turn_id, follows=record.follows)
        if self._continue is None:
            raise RuntimeError("Nothing begins turns here.")
        self._continue(conversation, live)
        await self._end_queue(conversation, live, meta.queue)
        return True

    async def _end_queue(self, conversation: Conversation, live: Turn, queue: Sequence[str]) -> None:
        """End the turns that were queued in the dead replica's memory: nobody else knows what they asked for."""
        for place, turn_id in enumerate(queue, start=1):
            if (record := await self._history.turn(conversation.keys, turn_id)) is None:
                continue
            base = await self._history.base(conversation.keys, record)
            async with conversation.order_lock:
                if live.journal is None or live.end is not None:
                    return  # the reaper ends them after this turn
                seq = conversation.next_seq()
                ending = close_orphaned(conversation.conversation_id, record, (), seq=seq, base=base)
                saved = await live.journal.write(ending.done, queue_exit(ending, " ".join(queue[place:])))
                done = ending.done
                conversation.publish_done(done if saved else msgspec.structs.replace(done, saved=False))
                live.tool_round.news.set()  # what the store does not take now is written later


def _renamed(old: WaitingTurn, conversation: Conversation) -> WaitingTurn:
    send = msgspec.structs.replace(
        old.send,
        conversation_id=conversation.conversation_id,
        grace_s=max(old.send.grace_s, COMEBACK_S),
    )
    record = msgspec.structs.replace(old.record, turn_id=TurnMessageIds.new().turn_id)
    return msgspec.structs.replace(old, record=record, send=send)
