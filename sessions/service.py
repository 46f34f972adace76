"""The door of the sessions floor: what a connection may ask about conversations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
import structlog
from redis.asyncio import Redis

from engine.door import Engine
from engine.messages import Request
from sessions import running
from sessions.conversation import Conversation, LiveTurn, Send, Subscriber
from sessions.directory import Directory
from sessions.errors import Draining, InternalError, Overloaded, Refused, StoreDown
from sessions.events import Cause, Journalled
from sessions.history import History
from sessions.index import Index, Page
from sessions.journal import Journal
from sessions.observer import Observer, Silent
from sessions.ownership import Ownership, RunningTurn
from sessions.paging import HistoryPage, page_of, steady_branch
from sessions.policy import Policy
from sessions.reaping import Reaper
from sessions.records import Owner
from sessions.removing import Remover, doom
from sessions.running import Runner
from sessions.sending import Generation, Sender, arrive
from sessions.store import load_scripts

SAVE_S = 5.0

_log = structlog.get_logger("midstream.sessions")


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
        policy: Policy,
        observer: Observer | None = None,
        replica: str | None = None,
    ) -> None:
        self._client = client
        self._max_turns = policy.max_turns
        self._draining = False
        self._directory = Directory()
        self._history = History(client, ttl_s=policy.ttl_s)
        self._index = Index(client, ttl_s=policy.ttl_s)
        self._journal = Journal(client)
        self._ownership = Ownership(client, replica=replica or secrets.token_hex(8))
        unsettled: set[str] = set()
        self._reaper = Reaper(
            history=self._history,
            ownership=self._ownership,
            unsettled=unsettled,
            runs=self._runs,
            tell=self._tell,
        )
        self._remover = Remover(history=self._history, index=self._index)
        self._sender = Sender(
            engine=engine,
            history=self._history,
            index=self._index,
            ownership=self._ownership,
            unsettled=unsettled,
            system_prompt=policy.system_prompt,
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
        self._runs_under_way: set[asyncio.Task[None]] = set()
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
                await self._saved(within_s=SAVE_S)
            finally:
                for task in (*chores, *self._runs_under_way):
                    task.cancel()
        await self._leave()

    async def _saved(self, *, within_s: float) -> None:
        """Waits for ends that were told but are not in the store. What is not saved then is closed by a reaper."""
        if self._runs_under_way:
            await asyncio.wait(self._runs_under_way, timeout=within_s)
        if self._runs_under_way:
            _log.warning("turns not saved", turns=len(self._runs_under_way))

    async def _leave(self) -> None:
        try:
            await self._ownership.give_up()
        except StoreDown:
            _log.warning("the lease could not be given up; it runs out by itself")

    def disconnect(self, subscriber: Subscriber) -> None:
        """A connection is gone: turns that nobody is attached to any more are cancelled."""
        for conversation in self._directory.detach(subscriber):
            self._cancel_unattended(conversation)
            self._directory.tidy(conversation)

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
        conversation = self._directory.open(owner, send.conversation_id)
        arrival = arrive(conversation, subscriber, send)
        self._turns += 1
        return self._tasks.create_task(_guarded(self._take(conversation, arrival, generation)))

    async def _take(self, conversation: Conversation, arrival: LiveTurn, generation: Generation) -> None:
        try:
            request = await self._sender.take(conversation, arrival, generation)
        finally:
            self._directory.tidy(conversation)
            if arrival.turn.accepted_at is None:
                self._turns -= 1
        if request is not None:
            self._by_turn[request.request_id] = conversation
            self._cancel_unattended(conversation)
            run = self._tasks.create_task(self._run(conversation, arrival, request))
            self._runs_under_way.add(run)
            run.add_done_callback(self._runs_under_way.discard)

    async def _run(self, conversation: Conversation, live: LiveTurn, request: Request) -> None:
        try:
            await self._runner.run(conversation, live, request)
        finally:
            del self._by_turn[request.request_id]
            self._turns -= 1
            self._directory.tidy(conversation)

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
        if turn_id is None:
            conversation = self._directory.get(owner, conversation_id or "")
        else:
            conversation = self._by_turn.get(turn_id)
        if conversation is None or conversation.owner != owner:
            return Cancelled(turn_id, already=True)
        candidates = [*conversation.turns, *conversation.arriving]
        turns = [live for live in candidates if turn_id in (None, live.turn.ids.turn_id)]
        cause = Cause.ROLLBACK if rollback else Cause.CLIENT
        decided = [
            live
            for live in turns
            if running.cancel(conversation, live, cause, seen_off=seen_off, rollback=rollback)
        ]
        met = next(iter(decided or turns), None)
        return Cancelled(met.turn.ids.turn_id if met else turn_id, already=not decided)

    async def take_back(self, owner: Owner, conversation_id: str, turn_id: str) -> None:
        """Removes an exchange whose turn has ended; nothing where there is no such. Raises Refused."""
        conversation = self._directory.open(owner, conversation_id)
        await self._carry_through(conversation, self._remover.take_back(conversation, turn_id))

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
        with self._directory.using(owner, conversation_id) as conversation:
            branch = await steady_branch(self._history, conversation, limit=limit, before=before)
            conversation.attach(subscriber)
            return page_of(conversation, branch, subscriber, limit=limit, newest=before is None)

    async def conversations(self, owner: Owner, *, limit: int, before: str | None) -> Page:
        """The owner's conversations, newest first. Raises Refused."""
        return await self._index.page(owner, limit=limit, before=before)

    async def delete(
        self, owner: Owner, conversation_id: str, *, ref: str | None, subscriber: Subscriber
    ) -> None:
        """Removes a conversation and its running turn; all attached connections are told. Raises Refused."""
        conversation = self._directory.open(owner, conversation_id)
        deletion = self._remover.delete(conversation, doom(conversation), by=subscriber, ref=ref)
        await self._carry_through(conversation, deletion)

    async def drain(self, within_s: float) -> None:
        """Takes no new turns, lets running ones end within a time, then ends them as interrupted."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_told()
        for conversation, live in self._directory.untold():
            running.cancel(conversation, live, Cause.DRAIN)
        await self._all_told()

    async def _all_told(self) -> None:
        while untold := self._directory.untold():
            _, live = untold[0]
            await live.ended.wait()

    def statistics(self) -> SessionStatistics:
        """Facts of this moment."""
        return SessionStatistics(len(self._directory), self._turns, self._journal.pipelines)

    async def _carry_through(self, conversation: Conversation, change: Coroutine[None, None, None]) -> None:
        """Changes a conversation to the end, also where the one who asked leaves meanwhile. Raises Refused."""
        self._directory.hold(conversation)
        changing = self._tasks.create_task(_guarded(change))
        changing.add_done_callback(lambda _: self._directory.let_go(conversation))
        if (refusal := await asyncio.shield(changing)) is not None:
            raise refusal

    def _cancel_unattended(self, conversation: Conversation) -> None:
        if not conversation.subscribers:
            for live in conversation.blocking():
                running.cancel(conversation, live, Cause.DISCONNECT)

    def _runs(self, turn: RunningTurn) -> bool:
        conversation = self._directory.get(turn.owner, turn.conversation_id)
        return conversation is not None and conversation.turn(turn.turn_id) is not None

    def _tell(self, turn: RunningTurn, events: Sequence[Journalled]) -> None:
        conversation = self._directory.get(turn.owner, turn.conversation_id)
        if conversation is not None:
            conversation.publish_late(events)


async def _guarded(work: Coroutine[None, None, None]) -> Refused | None:
    """A task's boundary: who asked is told, nobody else notices."""
    try:
        await work
    except Refused as refusal:
        return refusal
    except Exception:  # noqa: BLE001 - see above
        incident = secrets.token_hex(4)
        _log.exception("request failed", incident=incident)
        return InternalError(incident=incident)
    return None
