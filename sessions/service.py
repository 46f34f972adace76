"""The door of the sessions floor: what a connection may ask about conversations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import msgspec
import structlog
from redis.asyncio import Redis

from engine.door import Engine
from engine.messages import Request
from sessions import running
from sessions.conversation import Attached, Conversation, LiveTurn, Send, Subscriber
from sessions.errors import Busy, Draining, NotFound, Overloaded, Refused
from sessions.events import Cause, Deleted, Done, Removed
from sessions.history import History, Moved
from sessions.index import Index, Page
from sessions.journal import Journal
from sessions.observer import Observer, Silent
from sessions.ownership import Ownership, RunningTurn
from sessions.paging import HistoryPage, page_of, steady_branch
from sessions.reaping import Reaper
from sessions.records import Owner
from sessions.running import Runner
from sessions.sending import Generation, Sender, arrive
from sessions.store import load_scripts

_log = structlog.get_logger("midstream.sessions")


class InternalError(Refused):
    """A defect of ours; `args[0]` names the incident that the log has."""

    code = "internal"


class Cancelled(msgspec.Struct, frozen=True):
    """What a cancel met. `turn_id` None: nothing ran; `already`: it had ended, or its end was decided."""

    turn_id: str | None
    already: bool


class SessionStatistics(msgspec.Struct, frozen=True):
    """Facts for metrics."""

    conversations: int
    turns: int
    journal_pipelines: int


class Sessions:
    """Conversations of this replica. Use `running()` around everything else."""

    def __init__(
        self,
        *,
        client: Redis,
        engine: Engine,
        ttl_s: float,
        max_turns: int,
        observer: Observer | None = None,
        replica: str | None = None,
    ) -> None:
        self._client = client
        self._max_turns = max_turns
        self._live: dict[tuple[Owner, str], Conversation] = {}
        self._draining = False
        self._history = History(client, ttl_s=ttl_s)
        self._index = Index(client, ttl_s=ttl_s)
        self._journal = Journal(client)
        self._ownership = Ownership(client, replica=replica or secrets.token_hex(8))
        self._reaper = Reaper(history=self._history, ownership=self._ownership, closed=self._closed_elsewhere)
        self._sender = Sender(
            engine=engine, history=self._history, index=self._index, ownership=self._ownership
        )
        self._runner = Runner(
            engine=engine,
            journal=self._journal,
            history=self._history,
            ownership=self._ownership,
            observer=observer or Silent(),
        )
        self._turns = 0
        self._by_turn: dict[str, Conversation] = {}
        self._attached: Attached = {}
        self._tasks: asyncio.TaskGroup

    @asynccontextmanager
    async def running(self, *, alone: bool) -> AsyncIterator[None]:
        """Serves while the context lasts. `alone`: no other replica can use this store. Raises StoreDown."""
        await load_scripts(self._client)
        await self._ownership.renew()
        if alone:
            await self._ownership.forget_other_leases()
            await self._reaper.reap()
        async with asyncio.TaskGroup() as self._tasks:
            chores = [
                self._tasks.create_task(chore)
                for chore in (self._journal.run(), self._ownership.keep(), self._reaper.watch())
            ]
            try:
                yield
                await self.drain(0.0)
            finally:
                for chore in chores:
                    chore.cancel()
        await self._ownership.give_up()

    def disconnect(self, subscriber: Subscriber) -> None:
        """A connection is gone: turns that nobody is attached to any more are cancelled."""
        for conversation in self._attached.pop(subscriber, ()):
            conversation.leave(subscriber)
            self._cancel_unattended(conversation)
            self._tidy(conversation)

    def send(
        self, owner: Owner, subscriber: Subscriber, send: Send, generation: Generation
    ) -> asyncio.Task[Refused | None]:
        """Takes a message in, before this returns as far as a following cancel is concerned.

        Its events are published. The task gives the refusal, if any; whoever stops waiting for it changes nothing.
        Raises Refused where the server takes no message at all.
        """
        if self._draining:
            raise Draining("The server is about to stop; send again after reconnecting.")
        if self._turns >= self._max_turns:
            raise Overloaded("The server has as many turns as it can take; try again in a moment.")
        conversation = self._open(owner, send.conversation_id)
        arrival = arrive(conversation, subscriber, send)
        self._turns += 1
        return self._tasks.create_task(self._take(conversation, arrival, generation))

    async def _take(
        self, conversation: Conversation, arrival: LiveTurn, generation: Generation
    ) -> Refused | None:
        try:
            request = await self._sender.take(conversation, arrival, generation)
        except Refused as refusal:
            return refusal
        except Exception:  # noqa: BLE001 - a task's boundary: one sender is told, nobody else notices
            incident = secrets.token_hex(4)
            _log.exception("send failed", incident=incident)
            return InternalError(f"An internal error, number {incident}.")
        finally:
            self._tidy(conversation)
            if arrival.turn.accepted_at is None:
                self._turns -= 1
        if request is not None:
            self._by_turn[request.request_id] = conversation
            self._cancel_unattended(conversation)
            self._tasks.create_task(self._run(conversation, arrival, request))
        return None

    async def _run(self, conversation: Conversation, live: LiveTurn, request: Request) -> None:
        await self._runner.run(conversation, live, request)
        del self._by_turn[request.request_id]
        self._turns -= 1
        self._tidy(conversation)

    def cancel(
        self,
        owner: Owner,
        *,
        conversation_id: str | None,
        turn_id: str | None,
        seen_off: int | None = None,
        rollback: bool = False,
    ) -> Cancelled:
        """Decides the end of a turn, or of all turns of a conversation. Synchronous, and never an error."""
        conversation = (
            self._by_turn.get(turn_id) if turn_id else self._live.get((owner, conversation_id or ""))
        )
        if conversation is None or conversation.owner != owner:
            return Cancelled(turn_id, already=True)
        candidates = [*conversation.turns, *conversation.arriving]
        turns = [live for live in candidates if turn_id in (None, live.turn.ids.turn_id)]
        cause = Cause.ROLLBACK if rollback else Cause.CLIENT
        decided = [
            running.cancel(conversation, live, cause, seen_off=seen_off, rollback=rollback) for live in turns
        ]
        first = turns[0].turn.ids.turn_id if turns else turn_id
        return Cancelled(first, already=not any(decided))

    async def take_back(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Removes an exchange whose turn has ended; nothing where there is no such. Raises Refused."""
        with self._using(owner, conversation_id) as conversation:
            meta = await self._history.load(conversation.keys)
            record = await self._history.turn(conversation.keys, turn_id)
            if meta is None or record is None or meta.running:
                return
            removed = Removed(conversation_id=conversation_id, turn_id=turn_id, seq=meta.seq + 1)
            try:
                if not await self._history.remove(conversation.keys, record, removed):
                    return
            except Moved:
                raise Busy("The conversation changed in this moment; try again.") from None
            conversation.publish_removed(removed)
            conversation.forget()

    async def history(
        self,
        owner: Owner,
        subscriber: Subscriber,
        conversation_id: str,
        *,
        limit: int,
        before: str | None = None,
    ) -> HistoryPage:
        """A page of the active branch, and attaches the caller: events behind `seq` follow. Raises Refused."""
        with self._using(owner, conversation_id) as conversation:
            branch = await steady_branch(self._history, conversation, limit=limit, before=before)
            conversation.attach(subscriber)
            return page_of(conversation, branch, subscriber, newest=before is None)

    async def conversations(self, owner: Owner, *, limit: int, before: str | None) -> Page:
        """The owner's conversations, newest first. Raises Refused."""
        return await self._index.page(owner, limit=limit, before=before)

    async def delete(
        self, owner: Owner, conversation_id: str, *, ref: str | None, subscriber: Subscriber
    ) -> None:
        """Removes a conversation and its running turn; all attached connections are told. Raises Refused."""
        with self._using(owner, conversation_id) as conversation:
            if not await self._history.delete(conversation.keys):
                raise NotFound(f"No conversation {conversation_id!r}.")
            await self._index.forget(owner, conversation_id)
            for live in conversation.turns:
                running.cancel(conversation, live, Cause.CLIENT)
            told = Deleted(conversation_id=conversation_id)
            for attached in conversation.subscribers - {subscriber}:
                attached.publish(told)
            subscriber.publish(msgspec.structs.replace(told, ref=ref))
            conversation.forget()

    async def drain(self, within_s: float) -> None:
        """Takes no new turns, lets running ones end within a time, then ends them as interrupted."""
        self._draining = True
        deadline = monotonic() + within_s
        while turns := [live for conversation in self._live.values() for live in conversation.turns]:
            if (left := deadline - monotonic()) <= 0:
                break
            await asyncio.wait([asyncio.ensure_future(turns[0].ended.wait())], timeout=left)
        for conversation in list(self._live.values()):
            for live in conversation.turns:
                running.cancel(conversation, live, Cause.DRAIN)
        for conversation in list(self._live.values()):
            for live in list(conversation.turns):
                await live.ended.wait()

    def statistics(self) -> SessionStatistics:
        """Facts of this moment."""
        return SessionStatistics(len(self._live), self._turns, self._journal.pipelines)

    def _open(self, owner: Owner, conversation_id: str) -> Conversation:
        key = (owner, conversation_id)
        if key not in self._live:
            self._live[key] = Conversation(owner, conversation_id, attached=self._attached)
        return self._live[key]

    @contextmanager
    def _using(self, owner: Owner, conversation_id: str) -> Iterator[Conversation]:
        conversation = self._open(owner, conversation_id)
        conversation.users += 1
        try:
            yield conversation
        finally:
            conversation.users -= 1
            self._tidy(conversation)

    def _tidy(self, conversation: Conversation) -> None:
        if conversation.idle:
            self._live.pop((conversation.owner, conversation.conversation_id), None)

    def _cancel_unattended(self, conversation: Conversation) -> None:
        if not conversation.subscribers:
            for live in conversation.blocking():
                running.cancel(conversation, live, Cause.DISCONNECT)

    def _closed_elsewhere(self, orphan: RunningTurn, done: Done) -> None:
        conversation = self._live.get((orphan.owner, orphan.conversation_id))
        if conversation is not None:
            conversation.publish_done(done)
            conversation.forget()
