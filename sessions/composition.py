"""Builds the parts of one replica, each from those before it."""

from __future__ import annotations

import secrets
from typing import cast

import msgspec
from redis.asyncio import Redis, RedisCluster

from engine.api import Engine
from sessions.commands.acceptance import MessageAcceptor
from sessions.commands.branches import BranchSwitcher
from sessions.commands.peer_requests import PeerRequestHandler
from sessions.commands.removal import ConversationDeleter, HistoryRemover, OwnerDataEraser
from sessions.commands.tool_results import ToolResultHandler
from sessions.commands.turn_manager import TurnManager
from sessions.conversation.conversation import BackgroundTasks, ConversationRegistry, ShieldedChanges
from sessions.generation import Generator
from sessions.limits.shares import Admission
from sessions.observer import Observer
from sessions.replicas.forwarder import Forwarder
from sessions.replicas.reaper import Reaper
from sessions.replicas.relay import Relay, ShardChannels, Subscriptions
from sessions.replicas.rpc import Rpc, ScatterGather, inbox_key
from sessions.running.ephemeral import EphemeralTurns
from sessions.running.runner import TurnRunner
from sessions.store.storage import Storage
from sessions.titles import TitleGenerator
from sessions.tool_round import CallStates, Failover, WaitingTurns
from sessions.tools.tool_registry import ToolRegistry
from sessions.translation.growth import SourceUpdateHandler
from sessions.translation.translator import Translator
from sessions.turn.policy import Policy
from sessions.turn.prompt import HistoryPromptBuilder


class ReplicaParts(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of one replica."""

    client: Redis
    storage: Storage
    priority_client: Storage
    """The storage with the separate client for running turns' writes."""
    tasks: BackgroundTasks
    directory: ConversationRegistry
    changes: ShieldedChanges
    prompts: HistoryPromptBuilder
    call_states: CallStates
    admission: Admission

    # for other replicas: their messages, requests to them, and what dead ones left
    channels: ShardChannels | None
    watching: Subscriptions
    rpc: Rpc
    relay: Relay
    reaper: Reaper
    forwarder: Forwarder
    gathering: ScatterGather

    # requests of clients and other replicas
    turns: TurnManager
    ephemeral: EphemeralTurns
    brancher: BranchSwitcher
    remover: HistoryRemover
    deleter: ConversationDeleter
    eraser: OwnerDataEraser
    answering: ToolResultHandler
    growing: SourceUpdateHandler
    orders: PeerRequestHandler


def compose(
    *,
    client: Redis,
    engine: Engine,
    policy: Policy,
    observer: Observer,
    replica: str | None,
    priority_client: Redis | None,
    tools: ToolRegistry,
) -> ReplicaParts:
    """Build a replica. `priority_client`: a separate client for running turns' writes, so that their ends do not wait."""
    replica = replica or secrets.token_hex(8)
    storage = Storage.of(
        client,
        replica=replica,
        ttl_s=policy.ttl_s,
        durability=policy.durability,
        priority_client=priority_client,
        most_bytes=policy.store_bytes,
    )
    channels = _shard_channels(client, replica)
    directory = (
        ConversationRegistry()
        if channels is None
        else ConversationRegistry(opened=channels.follow, closed=channels.leave)
    )
    tasks = BackgroundTasks()
    running = (
        storage
        if priority_client is None
        else storage.over(priority_client, ttl_s=policy.ttl_s, durability=policy.durability)
    )
    changes = ShieldedChanges(directory=directory, tasks=tasks)
    prompts = HistoryPromptBuilder(
        engine=engine, history=storage.history, images=storage.images, operators=policy.system_prompt
    )
    call_states = CallStates(running.history, replica=replica)
    failover = Failover(directory=directory, storage=storage)
    admission = Admission(at_most=policy.max_turns)
    history, ownership = storage.history, storage.ownership
    brancher = BranchSwitcher(client, history=history, replica=replica)
    watching = Subscriptions(client, ownership=ownership, directory=directory, channels=channels)
    rpc = Rpc(client, ownership=ownership)
    relay = Relay(
        client,
        replica=replica,
        directory=directory,
        history=history,
        rpc=rpc,
        branched=lambda conversation: changes.begin(conversation, brancher.publish(conversation)),
        channels=channels,
    )
    reaper = Reaper(storage, directory=directory, relay=relay, failover=failover)
    forwarder = Forwarder(rpc=rpc, history=history, ownership=ownership, watching=watching, reaper=reaper)
    gathering = ScatterGather(rpc, ownership)
    sources = Translator(engine, policy.filters)
    turns = TurnManager(
        directory=directory,
        history=history,
        acceptor=MessageAcceptor(
            storage,
            prompts=prompts,
            sources=sources,
            policy=policy,
            observer=observer,
            watching=watching,
            forwarder=forwarder,
        ),
        runner=TurnRunner(
            running,
            generator=Generator(engine, policy.filters),
            sources=sources,
            observer=observer,
            tools=policy.tools,
            titler=TitleGenerator(engine=engine, index=storage.index, filters=policy.filters, tasks=tasks)
            if policy.titles
            else None,
        ),
        admission=admission,
        waiting=WaitingTurns(
            history=history,
            prompts=prompts,
            call_states=call_states,
            box=tools,
            observer=observer,
            filters=policy.filters,
            limits=policy.tools,
            is_draining=lambda: admission.draining,
        ),
        relay=relay,
        tasks=tasks,
    )
    failover.on_takeover(turns.continue_turn)
    answering = ToolResultHandler(
        history=history,
        call_states=call_states,
        forwarder=forwarder,
        filters=policy.filters,
        ledger=storage.ledger,
        max_chars=policy.tools.max_chars,
    )
    growing = SourceUpdateHandler(history=history, filters=policy.filters, forwarder=forwarder)
    remover = HistoryRemover(
        history=history,
        index=storage.index,
        images=storage.images,
        sharing=storage.sharing,
        compaction=storage.compaction,
        brancher=brancher,
    )
    deleter = ConversationDeleter(
        directory=directory, history=history, forwarder=forwarder, remover=remover, changes=changes
    )
    return ReplicaParts(
        client=client,
        storage=storage,
        priority_client=running,
        tasks=tasks,
        directory=directory,
        changes=changes,
        prompts=prompts,
        call_states=call_states,
        admission=admission,
        channels=channels,
        watching=watching,
        rpc=rpc,
        relay=relay,
        reaper=reaper,
        forwarder=forwarder,
        gathering=gathering,
        turns=turns,
        ephemeral=EphemeralTurns(
            engine=engine, policy=policy, admission=admission, observer=observer, tasks=tasks
        ),
        brancher=brancher,
        remover=remover,
        deleter=deleter,
        eraser=OwnerDataEraser(
            directory=directory,
            belongings=storage.belongings,
            deleter=deleter,
            index=storage.index,
            notes=storage.notes,
            images=storage.images,
            ledger=storage.ledger,
        ),
        answering=answering,
        growing=growing,
        orders=PeerRequestHandler(
            directory=directory,
            turns=turns,
            rpc=rpc,
            deleter=deleter,
            answering=answering,
            grow_here=growing.grow_here,
            gathering=gathering,
            forwarder=forwarder,
            tasks=tasks,
        ),
    )


def _shard_channels(client: Redis, replica: str) -> ShardChannels | None:
    """Return the shard channels of a replica whose name is in braces (`tell.lua`)."""
    cluster = cast("object", client)
    if not (isinstance(cluster, RedisCluster) and replica.startswith("{")):
        return None
    channels = ShardChannels(cluster, replica=replica)
    channels.follow(inbox_key(replica))
    return channels
