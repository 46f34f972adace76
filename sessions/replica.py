"""A replica: all parts of the sessions floor, put together, and what they do from start to stop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import structlog
from redis.asyncio import Redis, RedisCluster

from engine.door import Engine
from sessions.commands.adopting import Adopter
from sessions.commands.branches import Brancher
from sessions.commands.intake import sender_of
from sessions.commands.orders import Orders
from sessions.commands.removing import Remover, doom
from sessions.commands.turns import Turns
from sessions.conversation.conversation import Conversation
from sessions.conversation.directory import Directory
from sessions.conversation.guarding import guarded
from sessions.errors import StoreDown
from sessions.events import Journalled
from sessions.observer import Observer, Silent
from sessions.records import Owner
from sessions.replicas.forwarding import Forwarder
from sessions.replicas.mailbox import Mailbox, box_of
from sessions.replicas.relay import Relay
from sessions.replicas.shard_channels import ShardChannels
from sessions.replicas.watching import Watching
from sessions.running.admission import Admission
from sessions.running.attendance import Attendance
from sessions.running.ephemeral import EphemeralTurns
from sessions.running.running import Runner
from sessions.store.client import load_scripts
from sessions.store.ownership import RENEW_S, RunningTurn
from sessions.store.reaping import Reaper
from sessions.store.storage import Storage
from sessions.store.transactions import Moved
from sessions.turn.generating import Generator
from sessions.turn.live_turn import LiveTurn
from sessions.turn.policy import Policy

SAVE_S = 5.0
DELETE_ATTEMPTS = 5
"""How often a turn that began meanwhile is ended first; one behind them loses its conversation."""

_log = structlog.get_logger("midstream.sessions")


class Replica:
    """The parts, running between start and stop."""

    def __init__(
        self,
        *,
        client: Redis,
        engine: Engine,
        policy: Policy,
        observer: Observer | None = None,
        replica: str | None = None,
        lane: Redis | None = None,
    ) -> None:
        """Put the parts together. `lane`: a client of its own for what running turns write, so that their ends do not wait behind requests."""
        self._client = client
        replica = replica or secrets.token_hex(8)
        storage = Storage.of(
            client, replica=replica, ttl_s=policy.ttl_s, durability=policy.durability, lane=lane
        )
        self._running = storage
        if lane is not None:
            self._running = storage.over(lane, ttl_s=policy.ttl_s, durability=policy.durability)
        self._history, self._index = storage.history, storage.index
        self._journal, self._ownership = self._running.journal, storage.ownership
        self._admission = Admission(at_most=policy.max_turns)
        self._channels = _shard_channels(client, self._ownership.replica)
        self._directory = (
            Directory()
            if self._channels is None
            else Directory(opened=self._channels.follow, closed=self._channels.leave)
        )
        self._attendance = Attendance()
        self._watching = Watching(
            client, ownership=self._ownership, directory=self._directory, channels=self._channels
        )
        self._brancher = Brancher(client, history=self._history, replica=self._ownership.replica)
        self._remover = Remover(history=self._history, index=self._index, compaction=storage.compaction)
        self._compaction = storage.compaction
        self._adopter = Adopter(storage.adoption)
        self._meet_others(storage)
        self._prepare_turns(storage, engine, policy, observer or Silent())
        self._orders = Orders(turns=self._turns, mailbox=self._mailbox, delete=self._delete)
        self._tasks: asyncio.TaskGroup

    def _meet_others(self, storage: Storage) -> None:
        """What other replicas tell this one, what is asked of them, and what is left of dead ones."""
        self._reaper = Reaper(
            storage,
            runs=lambda turn: self._turns.runs(turn),  # noqa: PLW0108 - made later
            tell=self._tell,
        )
        self._mailbox = Mailbox(
            self._client,
            ownership=self._ownership,
            take=lambda order: self._orders.take(order),  # noqa: PLW0108 - made later
        )
        self._forwarder = Forwarder(
            mailbox=self._mailbox,
            history=self._history,
            ownership=self._ownership,
            watching=self._watching,
            bury=self._reaper.reap,
        )
        self._relay = Relay(
            self._client,
            replica=self._ownership.replica,
            directory=self._directory,
            history=self._history,
            nudged=self._mailbox.nudge,
            unattended=self._attendance.look,
            branched=self._tell_branch,
            channels=self._channels,
        )

    def _prepare_turns(self, storage: Storage, engine: Engine, policy: Policy, observer: Observer) -> None:
        """The way of a message in, and what runs its turn, with a conversation or without one."""
        self._runner = Runner(
            self._running,
            generator=Generator(engine, policy.filters),
            observer=observer,
        )
        self._turns = Turns(
            directory=self._directory,
            sender=sender_of(
                storage,
                engine=engine,
                policy=policy,
                observer=observer,
                watching=self._watching,
                forwarder=self._forwarder,
            ),
            runner=self._runner,
            attendance=self._attendance,
            lost=self._relay.catch_up,
            admission=self._admission,
        )
        self._ephemeral = EphemeralTurns(
            engine=engine, policy=policy, admission=self._admission, observer=observer
        )

    @asynccontextmanager
    async def running(self, *, alone: bool) -> AsyncIterator[None]:
        """Serves while the context lasts. `alone`: no other replica can use this store. Raises StoreDown."""
        await load_scripts(self._client)
        await self._ownership.renew()
        if alone:
            await self._ownership.forget_other_leases()
            await self._reaper.reap()
        async with asyncio.TaskGroup() as self._tasks:
            self._turns.tasks = self._ephemeral.tasks = self._tasks
            chores = [self._tasks.create_task(chore) for chore in self._chores()]
            try:
                yield
                await self.drain(0.0)
                await self._turns.saved(within_s=SAVE_S)
            finally:
                self._turns.stop()
                self._adopter.stop()
                for task in chores:
                    task.cancel()
        await self._leave()

    def _chores(self) -> Iterable[Coroutine[None, None, None]]:
        return (
            *(() if self._channels is None else (self._channels.run(), self._relay.listen_to_shards())),
            self._journal.run(),
            self._running.ownership.keep(),
            self._reaper.watch(),
            self._relay.listen(),
            self._relay.fill(),
            self._mailbox.run(),
            self._compaction.run(),
            self._look_around(),
        )

    async def _leave(self) -> None:
        try:
            await self._ownership.give_up()
        except StoreDown:
            _log.warning("the lease could not be given up; it runs out by itself")

    def _leave_the_list(self, conversation: Conversation) -> None:
        if conversation.others.watching and not conversation.subscribers:
            leaving = self._tasks.create_task(self._watching.end(conversation))
            leaving.add_done_callback(lambda _: self._attendance.look(conversation))

    async def _look_around(self) -> None:
        """Looks now and then after what messages were lost about, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                for late in await self._watching.look_again():
                    self._relay.catch_up(late)
            except StoreDown:
                continue
            except Exception:  # noqa: BLE001 - a task's boundary: what one look does not find the next one does
                _log.exception("looking around failed")
            for conversation in self._directory.with_turns():
                self._attendance.look(conversation)

    async def _delete(self, owner: Owner, conversation_id: str) -> None:
        conversation = self._directory.open(owner, conversation_id)
        doomed = doom(conversation)
        await self._carry_through(conversation, self._delete_anywhere(conversation, doomed))

    async def _delete_anywhere(self, conversation: Conversation, doomed: list[LiveTurn]) -> None:
        epoch = await self._history.epoch(conversation.keys)
        for attempts_left in reversed(range(DELETE_ATTEMPTS)):
            if await self._forwarder.delete(conversation):
                conversation.publish_deleted(epoch)
                return
            try:
                await self._remover.delete(conversation, doomed, epoch=epoch, is_last=not attempts_left)
            except Moved:
                doomed = doom(conversation)
            else:
                return

    async def drain(self, within_s: float) -> None:
        """Takes no new turns, lets running ones end within a time, then ends them as interrupted."""
        await asyncio.gather(self._turns.drain(within_s), self._ephemeral.drain(within_s))

    async def _carry_through(self, conversation: Conversation, change: Coroutine[None, None, None]) -> None:
        """Changes a conversation to the end, also where the one who asked leaves meanwhile. Raises Refused."""
        self._directory.hold(conversation)
        changing = self._tasks.create_task(guarded(change))
        changing.add_done_callback(lambda _: self._directory.let_go(conversation))
        if (refusal := await asyncio.shield(changing)) is not None:
            raise refusal

    def _tell_branch(self, conversation: Conversation) -> None:
        self._tasks.create_task(guarded(self._tell_branch_steadily(conversation)))

    async def _tell_branch_steadily(self, conversation: Conversation) -> None:
        with self._directory.held(conversation):
            await self._brancher.tell(conversation)

    def _tell(self, turn: RunningTurn, events: Sequence[Journalled]) -> None:
        conversation = self._directory.get(turn.owner, turn.conversation_id)
        if conversation is not None:
            self._relay.tell(conversation, events)


def _shard_channels(client: Redis, replica: str) -> ShardChannels | None:
    """Where a replica whose name is in braces listens (`tell.lua`)."""
    cluster = cast("object", client)
    if not (isinstance(cluster, RedisCluster) and replica.startswith("{")):
        return None
    channels = ShardChannels(cluster, replica=replica)
    channels.follow(box_of(replica))
    return channels
