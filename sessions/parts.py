"""The parts of the sessions floor, and how they are put together: one after the other, each made of those before it."""

from __future__ import annotations

import secrets
from typing import cast

import msgspec
from redis.asyncio import Redis, RedisCluster

from engine.door import Engine
from sessions.commands.adopting import Adopter
from sessions.commands.branches import Brancher
from sessions.commands.intake import sender_of
from sessions.commands.orders import Orders
from sessions.commands.removing import Deleter, Remover
from sessions.commands.turns import Turns
from sessions.conversation.directory import Directory
from sessions.conversation.guarding import Changes, Tasks
from sessions.observer import Observer
from sessions.replicas.forwarding import Forwarder
from sessions.replicas.reaping import Reaper
from sessions.replicas.relay import Relay
from sessions.replicas.rpc import Rpc, box_of
from sessions.replicas.shard_channels import ShardChannels
from sessions.replicas.watching import Watching
from sessions.running.admission import Admission
from sessions.running.attendance import Attendance
from sessions.running.ephemeral import EphemeralTurns
from sessions.running.runner import Runner
from sessions.store.storage import Storage
from sessions.turn.generating import Generator
from sessions.turn.policy import Policy


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What all others stand on. `lane`: the storage by the client that running turns write with."""

    client: Redis
    storage: Storage
    lane: Storage
    tasks: Tasks
    directory: Directory
    changes: Changes
    admission: Admission
    attendance: Attendance


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """What other replicas tell this one, what is asked of them, and what is left of dead ones."""

    channels: ShardChannels | None
    watching: Watching
    rpc: Rpc
    relay: Relay
    reaper: Reaper
    forwarder: Forwarder


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """What clients and other replicas may ask for."""

    turns: Turns
    ephemeral: EphemeralTurns
    brancher: Brancher
    remover: Remover
    deleter: Deleter
    adopter: Adopter
    orders: Orders


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All of one replica."""

    base: Base
    peers: Peers
    commands: Commands


def compose(
    *,
    client: Redis,
    engine: Engine,
    policy: Policy,
    observer: Observer,
    replica: str | None,
    lane: Redis | None,
) -> Parts:
    """Put a replica together. `lane`: a client of its own for what running turns write, so that their ends do not wait."""
    replica = replica or secrets.token_hex(8)
    storage = Storage.of(client, replica=replica, ttl_s=policy.ttl_s, durability=policy.durability, lane=lane)
    channels = _shard_channels(client, replica)
    directory = Directory() if channels is None else Directory(opened=channels.follow, closed=channels.leave)
    tasks = Tasks()
    base = Base(
        client=client,
        storage=storage,
        lane=storage
        if lane is None
        else storage.over(lane, ttl_s=policy.ttl_s, durability=policy.durability),
        tasks=tasks,
        directory=directory,
        changes=Changes(directory=directory, tasks=tasks),
        admission=Admission(at_most=policy.max_turns),
        attendance=Attendance(),
    )
    brancher = Brancher(client, history=storage.history, replica=replica)
    peers = _peers(base, brancher, channels)
    return Parts(
        base=base,
        peers=peers,
        commands=_commands(base, peers, brancher=brancher, engine=engine, policy=policy, observer=observer),
    )


def _peers(base: Base, brancher: Brancher, channels: ShardChannels | None) -> Peers:
    history, ownership, directory = base.storage.history, base.storage.ownership, base.directory
    watching = Watching(base.client, ownership=ownership, directory=directory, channels=channels)
    rpc = Rpc(base.client, ownership=ownership)
    relay = Relay(
        base.client,
        replica=ownership.replica,
        directory=directory,
        history=history,
        nudged=rpc.nudge,
        unattended=base.attendance.look,
        branched=lambda conversation: base.changes.begin(conversation, brancher.tell(conversation)),
        channels=channels,
    )
    reaper = Reaper(base.storage, runs=directory.runs, tell=relay.tell_of)
    forwarder = Forwarder(rpc=rpc, history=history, ownership=ownership, watching=watching, bury=reaper.reap)
    return Peers(
        channels=channels,
        watching=watching,
        rpc=rpc,
        relay=relay,
        reaper=reaper,
        forwarder=forwarder,
    )


def _commands(
    base: Base, peers: Peers, *, brancher: Brancher, engine: Engine, policy: Policy, observer: Observer
) -> Commands:
    storage = base.storage
    sender = sender_of(
        storage,
        engine=engine,
        policy=policy,
        observer=observer,
        watching=peers.watching,
        forwarder=peers.forwarder,
    )
    turns = Turns(
        directory=base.directory,
        sender=sender,
        runner=Runner(
            base.lane,
            generator=Generator(engine, policy.filters),
            observer=observer,
            tools=policy.tools,
        ),
        attendance=base.attendance,
        admission=base.admission,
        lost=peers.relay.catch_up,
        tasks=base.tasks,
    )
    ephemeral = EphemeralTurns(
        engine=engine, policy=policy, admission=base.admission, observer=observer, tasks=base.tasks
    )
    remover = Remover(history=storage.history, index=storage.index, compaction=storage.compaction)
    deleter = Deleter(
        directory=base.directory,
        history=storage.history,
        forwarder=peers.forwarder,
        remover=remover,
        changes=base.changes,
    )
    return Commands(
        turns=turns,
        ephemeral=ephemeral,
        brancher=brancher,
        remover=remover,
        deleter=deleter,
        adopter=Adopter(storage.adoption, base.tasks),
        orders=Orders(turns=turns, rpc=peers.rpc, delete=deleter.delete, tasks=base.tasks),
    )


def _shard_channels(client: Redis, replica: str) -> ShardChannels | None:
    """Where a replica whose name is in braces listens (`tell.lua`)."""
    cluster = cast("object", client)
    if not (isinstance(cluster, RedisCluster) and replica.startswith("{")):
        return None
    channels = ShardChannels(cluster, replica=replica)
    channels.follow(box_of(replica))
    return channels
