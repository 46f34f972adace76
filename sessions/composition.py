"""Builds the parts of one replica, each from those before it."""

from __future__ import annotations

import secrets
from typing import cast

from redis.asyncio import Redis, RedisCluster

from engine.api import Engine
from sessions.commands.acceptance import MessageAcceptor
from sessions.commands.branches import BranchSwitcher
from sessions.commands.peer_requests import PeerRequestHandler
from sessions.commands.removal import HistoryRemover
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


class ReplicaParts:
    """All parts of one replica."""

    def __init__(
        self,
        *,
        client: Redis,
        engine: Engine,
        policy: Policy,
        observer: Observer,
        replica: str | None,
        priority_client: Redis | None,
        tools: ToolRegistry,
    ) -> None:
        """`priority_client`: a separate client for running turns' writes, so that ends of turns do not wait."""
        self.client = client
        replica = replica or secrets.token_hex(8)
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
        self.channels = channels = _shard_channels(client, replica)
        self.directory = directory = (
            ConversationRegistry()
            if channels is None
            else ConversationRegistry(opened=channels.follow, closed=channels.leave)
        )
        self.tasks = BackgroundTasks()
        self.changes = ShieldedChanges(directory=directory, tasks=self.tasks)
        self.prompts = HistoryPromptBuilder(
            engine=engine, history=history, images=storage.images, operators=policy.system_prompt
        )
        self.call_states = CallStates(self.priority_client.history, replica=replica)
        self.admission = Admission(at_most=policy.max_turns)
        self.brancher = BranchSwitcher(client, history=history, replica=replica)

        # for other replicas: their messages, requests to them, and what dead ones left
        self.watching = Subscriptions(client, ownership=ownership, directory=directory, channels=channels)
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
            channels=channels,
        )
        failover = Failover(directory=directory, storage=storage)
        self.reaper = Reaper(storage, directory=directory, relay=self.relay, failover=failover)
        self.forwarder = Forwarder(
            rpc=self.rpc, history=history, ownership=ownership, watching=self.watching, reaper=self.reaper
        )
        self.gathering = ScatterGather(self.rpc, ownership)

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
        failover.on_takeover(self.turns.continue_turn)
        self.ephemeral = EphemeralTurns(
            engine=engine, policy=policy, admission=self.admission, observer=observer, tasks=self.tasks
        )
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
            gathering=self.gathering,
            forwarder=self.forwarder,
            tasks=self.tasks,
        )


def _shard_channels(client: Redis, replica: str) -> ShardChannels | None:
    """Return the shard channels of a replica whose name is in braces (`tell.lua`)."""
    cluster = cast("object", client)
    if not (isinstance(cluster, RedisCluster) and replica.startswith("{")):
        return None
    channels = ShardChannels(cluster, replica=replica)
    channels.follow(inbox_key(replica))
    return channels
