"""Builds the parts of the sessions floor, each from those before it."""

from __future__ import annotations

import secrets
from typing import cast

import msgspec
from redis.asyncio import Redis, RedisCluster

from engine.door import Engine
from sessions.commands.adopting import Adopter
from sessions.commands.answering import Answering
from sessions.commands.branches import Brancher
from sessions.commands.growing import Growing
from sessions.commands.orders import Orders
from sessions.commands.removing import Deleter, Eraser, Remover
from sessions.commands.sending import sender_of
from sessions.commands.turns import Turns
from sessions.conversation.directory import Directory
from sessions.conversation.guarding import Changes, Tasks
from sessions.exchange.settling import Answered, Settler
from sessions.exchange.taking_over import TakingOver
from sessions.exchange.waiting import Waiting
from sessions.interpreting.source import Grown, Growth
from sessions.observer import Observer
from sessions.records import Owner
from sessions.replicas.forwarding import Forwarder
from sessions.replicas.gathering import Gathering
from sessions.replicas.reaping import Reaper
from sessions.replicas.relay import Relay
from sessions.replicas.rpc import Rpc, box_of
from sessions.replicas.shard_channels import ShardChannels
from sessions.replicas.watching import Watching
from sessions.running.admission import Admission
from sessions.running.announcing import Announcer
from sessions.running.attendance import Attendance
from sessions.running.ephemeral import EphemeralTurns
from sessions.running.runner import Runner
from sessions.store.storage import Storage
from sessions.titles.titler import Titler
from sessions.tools.tool_box import ToolBox
from sessions.translation.growing import Grower
from sessions.translation.interpreter import Interpreter
from sessions.turn.calls import CallAnswer
from sessions.turn.generating import Generator
from sessions.turn.policy import Policy
from sessions.turn.prompt import Prompts


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that all others use. `lane`: the storage with the separate client for running turns' writes."""

    client: Redis
    storage: Storage
    lane: Storage
    tasks: Tasks
    directory: Directory
    changes: Changes
    prompts: Prompts
    settler: Settler
    taking_over: TakingOver
    admission: Admission
    attendance: Attendance


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The parts for other replicas: their messages, requests to them, and what dead ones left."""

    channels: ShardChannels | None
    watching: Watching
    rpc: Rpc
    relay: Relay
    reaper: Reaper
    forwarder: Forwarder
    gathering: Gathering


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that handle requests of clients and other replicas."""

    turns: Turns
    ephemeral: EphemeralTurns
    brancher: Brancher
    remover: Remover
    deleter: Deleter
    eraser: Eraser
    adopter: Adopter
    answering: Answering
    growing: Growing
    orders: Orders


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of one replica."""

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
    tools: ToolBox,
) -> Parts:
    """Build a replica. `lane`: a separate client for running turns' writes, so that their ends do not wait."""
    replica = replica or secrets.token_hex(8)
    storage = Storage.of(
        client,
        replica=replica,
        ttl_s=policy.ttl_s,
        durability=policy.durability,
        lane=lane,
        most_bytes=policy.store_bytes,
    )
    channels = _shard_channels(client, replica)
    directory = Directory() if channels is None else Directory(opened=channels.follow, closed=channels.leave)
    tasks = Tasks()
    running = (
        storage if lane is None else storage.over(lane, ttl_s=policy.ttl_s, durability=policy.durability)
    )
    announcer = Announcer(ownership=storage.ownership, index=storage.index, ledger=storage.ledger)
    base = Base(
        client=client,
        storage=storage,
        lane=running,
        tasks=tasks,
        directory=directory,
        changes=Changes(directory=directory, tasks=tasks),
        prompts=Prompts(
            engine=engine, history=storage.history, images=storage.images, operators=policy.system_prompt
        ),
        settler=Settler(running.history, replica=replica),
        taking_over=TakingOver(directory=directory, history=storage.history, announcer=announcer),
        admission=Admission(at_most=policy.max_turns),
        attendance=Attendance(),
    )
    brancher = Brancher(client, history=storage.history, replica=replica)
    peers = _peers(base, brancher, channels)
    return Parts(
        base=base,
        peers=peers,
        commands=_commands(
            base, peers, brancher=brancher, engine=engine, policy=policy, observer=observer, tools=tools
        ),
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
    reaper = Reaper(base.storage, runs=directory.runs, tell=relay.tell_of, go_on=base.taking_over.take_over)
    forwarder = Forwarder(rpc=rpc, history=history, ownership=ownership, watching=watching, bury=reaper.reap)
    return Peers(
        channels=channels,
        watching=watching,
        rpc=rpc,
        relay=relay,
        reaper=reaper,
        forwarder=forwarder,
        gathering=Gathering(rpc, ownership),
    )


def _commands(
    base: Base,
    peers: Peers,
    *,
    brancher: Brancher,
    engine: Engine,
    policy: Policy,
    observer: Observer,
    tools: ToolBox,
) -> Commands:
    storage = base.storage
    sender = sender_of(
        storage,
        prompts=base.prompts,
        policy=policy,
        observer=observer,
        watching=peers.watching,
        forwarder=peers.forwarder,
    )
    turns = Turns(
        directory=base.directory,
        history=storage.history,
        sender=sender,
        runner=Runner(
            base.lane,
            generator=Generator(engine, policy.filters),
            interpreter=Interpreter(engine, policy.filters, prompt=policy.interpret_prompt),
            observer=observer,
            tools=policy.tools,
            titler=_titler(base, engine, policy),
        ),
        attendance=base.attendance,
        admission=base.admission,
        waiting=Waiting(
            history=storage.history,
            prompts=base.prompts,
            settler=base.settler,
            box=tools,
            observer=observer,
            filters=policy.filters,
            limits=policy.tools,
            is_draining=lambda: base.admission.draining,
        ),
        lost=peers.relay.catch_up,
        tasks=base.tasks,
    )
    base.taking_over.begins(turns.go_on)
    answering = Answering(
        history=storage.history,
        settler=base.settler,
        forwarder=peers.forwarder,
        filters=policy.filters,
        ledger=storage.ledger,
        max_chars=policy.tools.max_chars,
    )

    async def answer_here(owner: Owner, conversation_id: str, answer: CallAnswer) -> Answered:
        with base.directory.using(owner, conversation_id) as conversation:
            return await answering.answer_here(conversation, answer)

    growing = Growing(history=storage.history, grower=Grower(policy.filters), forwarder=peers.forwarder)

    async def grow_here(owner: Owner, conversation_id: str, growth: Growth) -> Grown:
        with base.directory.using(owner, conversation_id) as conversation:
            return await growing.grow_here(conversation, growth)

    async def bury_left(owner: Owner, conversation_id: str) -> None:
        with base.directory.using(owner, conversation_id) as conversation:
            await peers.forwarder.bury_left(conversation)

    ephemeral = EphemeralTurns(
        engine=engine, policy=policy, admission=base.admission, observer=observer, tasks=base.tasks
    )
    remover = Remover(
        history=storage.history,
        index=storage.index,
        images=storage.images,
        sharing=storage.sharing,
        compaction=storage.compaction,
        brancher=brancher,
    )
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
        eraser=Eraser(
            directory=base.directory,
            belongings=storage.belongings,
            deleter=deleter,
            index=storage.index,
            notes=storage.notes,
            images=storage.images,
            ledger=storage.ledger,
        ),
        adopter=Adopter(storage.adoption, base.tasks),
        answering=answering,
        growing=growing,
        orders=Orders(
            turns=turns,
            rpc=peers.rpc,
            delete=deleter.delete,
            answer_here=answer_here,
            grow_here=grow_here,
            hear=peers.gathering.hear,
            bury_left=bury_left,
            tasks=base.tasks,
        ),
    )


def _titler(base: Base, engine: Engine, policy: Policy) -> Titler | None:
    if not policy.titles:
        return None
    return Titler(engine=engine, index=base.storage.index, filters=policy.filters, tasks=base.tasks)


def _shard_channels(client: Redis, replica: str) -> ShardChannels | None:
    """Return the shard channels of a replica whose name is in braces (`tell.lua`)."""
    cluster = cast("object", client)
    if not (isinstance(cluster, RedisCluster) and replica.startswith("{")):
        return None
    channels = ShardChannels(cluster, replica=replica)
    channels.follow(box_of(replica))
    return channels
