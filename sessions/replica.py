"""One replica: its parts, its background tasks, and its drain."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import structlog
from redis.asyncio import Redis

from engine.api import Engine
from engine.upstream.engine import UpstreamEmbedder
from sessions.commands.acceptance import MessageAcceptor
from sessions.commands.branches import BranchSwitcher
from sessions.commands.peer_requests import PeerRequestHandler
from sessions.commands.removal import HistoryRemover
from sessions.commands.tool_results import ToolResultHandler
from sessions.commands.turn_manager import TurnManager
from sessions.conversation.conversation import (
    BackgroundTasks,
    Conversation,
    ConversationRegistry,
    ShieldedChanges,
)
from sessions.conversation.history_page import TurnReader
from sessions.embedding import Embedding
from sessions.errors import StoreDown
from sessions.generation import Generator
from sessions.limits.shares import Admission
from sessions.limits.slots import FairSlots
from sessions.observer import Observer
from sessions.replicas.forwarder import Forwarder
from sessions.replicas.reaper import Reaper
from sessions.replicas.relay import Relay, Subscriptions
from sessions.replicas.rpc import Rpc, ScatterGather
from sessions.running import runner
from sessions.running.ephemeral import EphemeralTurns
from sessions.running.runner import TurnRunner
from sessions.store.client import load_scripts
from sessions.store.ownership import RENEW_S
from sessions.store.server_config import retry_until_available
from sessions.store.storage import Storage
from sessions.titles import TitleGenerator
from sessions.tool_round import CallStates, WaitingTurns
from sessions.tools.tool_registry import ToolRegistry
from sessions.translation.growth import SourceUpdateHandler
from sessions.translation.translator import Translator
from sessions.turn.policy import Policy
from sessions.turn.prompt import HistoryPromptBuilder

SAVE_S = 5.0
SEARCHES = 2
"""Searches that a replica runs at a time, each for half a second at most."""

_log = structlog.get_logger("midstream.sessions")


class Replica:
    """All parts of one replica, each built from those before it. Runs them between start and stop."""

    def __init__(
        self,
        *,
        client: Redis,
        engine: Engine,
        policy: Policy,
        observer: Observer | None = None,
        replica: str | None = None,
        priority_client: Redis | None = None,
        tools: ToolRegistry | None = None,
        embedders: Sequence[UpstreamEmbedder] = (),
    ) -> None:
        """`priority_client`: a separate client for running turns' writes, so that ends of turns do not wait behind requests.

        `tools`: the server tools; the caller keeps them running.
        """
        self.client = client
        self.tools = tools = tools or ToolRegistry()
        self.shares = policy.sharing
        """Whether people may share conversations."""
        self.refuses_tools = policy.unsupported_tools == "refuse"
        observer, replica = observer or Observer(), replica or secrets.token_hex(8)
        self.storage = storage = Storage(
            client,
            replica=replica,
            ttl_s=policy.ttl_s,
            durability=policy.durability,
            priority_client=priority_client,
            most_bytes=policy.store_bytes,
        )
        history, ownership, filters = storage.history, storage.ownership, policy.filters
        self.priority_client = storage
        """The storage with the separate client for running turns' writes."""
        if priority_client is not None:
            self.priority_client = storage.over(
                priority_client, ttl_s=policy.ttl_s, durability=policy.durability
            )
        self.notes, self.images, self.memory = storage.notes, storage.images, storage.ledger.memory
        self.kept = TurnReader(history, storage.notes)
        self.searches = FairSlots(SEARCHES)
        self.directory = directory = ConversationRegistry()
        self.tasks = BackgroundTasks()
        self.changes = ShieldedChanges(directory=directory, tasks=self.tasks)
        self.prompts = HistoryPromptBuilder(
            engine=engine, history=history, images=storage.images, operators=policy.system_prompt
        )
        self.choice = self.prompts.choice
        """The models that may be asked."""
        self.call_states = CallStates(self.priority_client.history, replica=replica)
        self.admission = Admission(at_most=policy.max_turns)
        self.brancher = BranchSwitcher(client, history=history, replica=replica)

        # for other replicas: their messages, requests to them, and what dead ones left
        self.watching = Subscriptions(client, ownership=ownership, directory=directory)
        self.rpc = Rpc(client, ownership=ownership)
        self.relay = Relay(
            client,
            replica=replica,
            directory=directory,
            history=history,
            rpc=self.rpc,
            branched=lambda conversation: self.changes.begin(
                conversation, self.brancher.publish(conversation)
            ),
        )
        self.reaper = Reaper(storage, directory=directory, relay=self.relay)
        self.forwarder = Forwarder(
            rpc=self.rpc, history=history, ownership=ownership, watching=self.watching, reaper=self.reaper
        )
        self.replicas = ScatterGather(self.rpc, ownership)
        """How the layer above asks its peers on all replicas."""

        # requests of clients and other replicas
        sources = Translator(engine, filters)
        self.turns = TurnManager(
            directory=directory,
            history=history,
            acceptor=MessageAcceptor(
                storage,
                prompts=self.prompts,
                sources=sources,
                policy=policy,
                observer=observer,
                watching=self.watching,
                forwarder=self.forwarder,
            ),
            runner=TurnRunner(
                self.priority_client,
                generator=Generator(engine, filters),
                sources=sources,
                observer=observer,
                tools=policy.tools,
                titler=TitleGenerator(engine=engine, index=storage.index, filters=filters, tasks=self.tasks)
                if policy.titles
                else None,
            ),
            admission=self.admission,
            waiting=WaitingTurns(
                history=history,
                prompts=self.prompts,
                call_states=self.call_states,
                box=tools,
                policy=policy,
                observer=observer,
                admission=self.admission,
            ),
            relay=self.relay,
            tasks=self.tasks,
        )
        self.reaper.on_takeover(self.turns.continue_turn)
        self.ephemeral = EphemeralTurns(
            engine=engine, policy=policy, admission=self.admission, observer=observer, tasks=self.tasks
        )
        self.embedding = Embedding(embedders, admission=self.admission, filters=filters)
        self.answering = ToolResultHandler(
            storage,
            call_states=self.call_states,
            forwarder=self.forwarder,
            policy=policy,
        )
        self.growing = SourceUpdateHandler(history=history, filters=filters, forwarder=self.forwarder)
        self.remover = HistoryRemover(
            storage,
            directory=directory,
            forwarder=self.forwarder,
            brancher=self.brancher,
            changes=self.changes,
        )
        self.orders = PeerRequestHandler(
            directory=directory,
            turns=self.turns,
            rpc=self.rpc,
            remover=self.remover,
            answering=self.answering,
            grow_here=self.growing.grow_here,
            gathering=self.replicas,
            forwarder=self.forwarder,
            tasks=self.tasks,
        )

    @asynccontextmanager
    async def running(self, *, alone: bool) -> AsyncIterator[None]:
        """Serve while the context lasts. `alone`: no other replica can use this store. Raises StoreDown."""
        await retry_until_available(partial(self._begin, alone=alone))
        async with self.tasks.running():
            chores = [self.tasks.begin(chore) for chore in self._background_tasks()]
            try:
                if alone:
                    await self._close_orphans()
                yield
                await self.drain(0.0)
                await self.turns.saved(within_s=SAVE_S)
            finally:
                self.turns.stop()
                for task in chores:
                    task.cancel()
        await self._leave()

    async def _begin(self, *, alone: bool) -> None:
        await load_scripts(self.client)
        await self.storage.ownership.renew()
        if alone:
            await self.storage.ownership.forget_other_leases()

    async def _close_orphans(self) -> None:
        """Close or continue the turns that an earlier process left. If the store refuses, the reaper tries again later."""
        try:
            await self.reaper.reap()
        except StoreDown as trouble:
            _log.warning("orphaned turns of earlier process not closed", why=str(trouble))

    async def drain(self, within_s: float) -> None:
        """Refuse new turns, let running ones end within a time, then end them as interrupted."""
        await asyncio.gather(self.turns.drain(within_s), self.ephemeral.drain(within_s))

    def unwatch(self, conversation: Conversation) -> None:
        """Stop watching a conversation if its last connection has left."""
        if conversation.others.watching and not conversation.subscribers:
            leaving = self.tasks.begin(self.watching.end(conversation))
            leaving.add_done_callback(lambda _: runner.cancel_unattended(conversation))

    def _background_tasks(self) -> Iterable[Coroutine[None, None, None]]:
        return (
            self.priority_client.journal.run(),
            self.priority_client.ownership.keep(),
            self.reaper.watch(),
            self.relay.listen(),
            self.relay.fill(),
            self.rpc.run(self.orders.take),
            self.storage.ledger.run(),
            self.storage.ledger.memory.run(),
            self._check_peers(),
        )

    async def _check_peers(self) -> None:
        """Do periodically what lost messages would have prompted, until cancelled."""
        taken = 0
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                taken = await self._drop_taken_over(taken)
                for late in await self.watching.reconcile():
                    self.relay.catch_up(late)
            except StoreDown:
                continue
            except Exception:  # noqa: BLE001 - a task's boundary: the next check finds what this one missed
                _log.exception("peer check failed")
            for conversation in self.directory.with_turns():
                runner.cancel_unattended(conversation)

    async def _drop_taken_over(self, taken: int) -> int:
        """Give up waiting turns that others took over after the lease expired; return the new `taken`. Raises StoreDown.

        `taken`: how often the lease had been taken at the last check. The check waits first: a replica that saw the lease expire
        may still be about to take over.
        """
        now = self.storage.ownership.taken
        if taken != now:
            await asyncio.sleep(RENEW_S)
            await self.turns.check_waits()
        return now

    async def _leave(self) -> None:
        with suppress(StoreDown):  # unwritten charges are counted when those conversations are weighed again
            await self.storage.ledger.settle()
        try:
            await self.storage.ownership.release_lease()
        except StoreDown:
            _log.warning("the lease could not be released; it expires by itself")
