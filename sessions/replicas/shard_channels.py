"""Sharded channels of a cluster (Redis 7, Valkey): a message there reaches one node, not all of them.

A script may publish only in slots of its own node. So a replica has a channel for each key that it watches, in the key's slot:
the key's name, followed by its own. Knows no conversations.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import structlog
from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sessions.errors import StoreDown
from sessions.store.redis.client import store_errors

LISTEN_S = 1.0
AGAIN_S = 0.2
JOIN_S = 1.0
"""How long to wait for a subscription. Events that are missed without it are read once it is established."""
WAITING = 1024
"""Messages that wait for their reader here; more wait in the nodes."""

_log = structlog.get_logger("midstream.relay")


class ShardMessage(msgspec.Struct, frozen=True):
    """A message about a key; None: the channel is established now, and earlier messages may be lost."""

    key: str
    message: bytes | None


class ShardChannels:
    """The channels of one replica, with a connection to each node that has some, while `run` runs."""

    def __init__(self, cluster: RedisCluster, *, replica: str) -> None:
        self._cluster = cluster
        self._suffix = f":to:{replica}"
        self._wanted: dict[str, asyncio.Event] = {}
        self._node_of: dict[str, str] = {}
        self._suspect: set[str] = set()
        self._nodes: dict[str, PubSub] = {}
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup
        self.messages: asyncio.Queue[ShardMessage] = asyncio.Queue(WAITING)

    def follow(self, key: str) -> None:
        """Subscribe to a key's channel. Synchronous; it is established later."""
        self._wanted.setdefault(key + self._suffix, asyncio.Event())
        self._changed.set()

    def leave(self, key: str) -> None:
        """Unsubscribe. Synchronous."""
        self._wanted.pop(key + self._suffix, None)
        self._changed.set()

    async def joined(self, key: str) -> None:
        """Wait until the key's channel is established, for `JOIN_S` at most."""
        if (stands := self._wanted.get(key + self._suffix)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(JOIN_S):
                    await stands.wait()

    async def run(self) -> None:
        """Subscribe and listen until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._keep_subscribed()
        finally:  # of a listener that was cancelled before its first step
            for pubsub in self._nodes.values():
                await _close(pubsub)

    async def _keep_subscribed(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reconcile()
            except StoreDown:  # a slot or its node is not available now
                self._changed.set()
                await asyncio.sleep(AGAIN_S)

    async def _reconcile(self) -> None:
        for channel in self._node_of.keys() - self._wanted.keys():
            await self._unsubscribe(channel)
        trouble: StoreDown | None = None
        for channel in self._wanted.keys() - self._node_of.keys():
            try:
                await self._subscribe(channel)
            except StoreDown as down:  # the other nodes' channels do not wait for this one
                trouble = down
        if trouble is not None:
            raise trouble

    async def _subscribe(self, channel: str) -> None:
        with store_errors():
            if channel in self._suspect:
                await self._cluster.exists(channel)  # a slot that moved is found by any command
                self._suspect.discard(channel)
            node = self._cluster.get_node_from_key(channel)
            if node is None:
                raise StoreDown("No node has the slot of a channel.")
            self._node_of[channel] = node.name
            try:
                await self._subscribe_at(node, channel)
            except BaseException:
                self._forget(channel)
                raise

    async def _subscribe_at(self, node: ClusterNode, channel: str) -> None:
        pubsub = self._nodes.get(node.name)
        if pubsub is not None:
            await pubsub.ssubscribe(channel)
            return
        options = node.connection_kwargs | {"retry": Retry(NoBackoff(), 0)}
        opened = PubSub(ConnectionPool(connection_class=node.connection_class, **options))
        try:
            await opened.ssubscribe(channel)
        except BaseException:
            await _close(opened)
            raise
        self._nodes[node.name] = opened
        self._tasks.create_task(self._listen(node.name, opened))

    async def _unsubscribe(self, channel: str) -> None:
        pubsub = self._nodes.get(self._node_of.pop(channel))
        if pubsub is not None:
            with store_errors():
                await pubsub.sunsubscribe(channel)

    async def _listen(self, name: str, pubsub: PubSub) -> None:
        """Take a node's messages until the connection is lost. Then its channels are subscribed anew, at their current nodes."""
        try:
            while True:
                with store_errors():
                    message = await pubsub.get_message(timeout=LISTEN_S)
                if message is not None:
                    await self._take(name, message["type"], message["channel"].decode(), message["data"])
        except StoreDown:
            _log.warning("a node's channels were lost", node=name)
        finally:
            self._nodes.pop(name, None)
            for channel in [channel for channel, node in self._node_of.items() if node == name]:
                self._forget(channel)
            await _close(pubsub)

    async def _take(self, node: str, kind: str, channel: str, message: bytes) -> None:
        key = channel.removesuffix(self._suffix)
        if kind == "smessage":
            await self.messages.put(ShardMessage(key, message))
        elif kind == "ssubscribe" and channel in self._wanted:
            self._wanted[channel].set()
            await self.messages.put(ShardMessage(key, None))
        elif kind == "sunsubscribe" and self._node_of.get(channel) == node:  # its slot moves to another node
            self._forget(channel)

    def _forget(self, channel: str) -> None:
        """Note a lost channel; it is subscribed anew if it is still wanted."""
        self._node_of.pop(channel, None)
        self._suspect.add(channel)
        if channel in self._wanted:
            self._wanted[channel].clear()
        self._changed.set()


async def _close(pubsub: PubSub) -> None:
    """Close its connection, also one that is being opened: the pool would keep that."""
    with suppress(StoreDown), store_errors():
        await pubsub.aclose()  # type: ignore[no-untyped-call]
        await pubsub.connection_pool.disconnect()
