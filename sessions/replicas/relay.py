"""Events of other replicas: their lists of watchers, and this replica's channel."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import structlog
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import PubSub

from sessions.conversation.catch_up import catch_up_to
from sessions.conversation.conversation import Conversation, ConversationRegistry
from sessions.errors import NotFound, StoreDown, StoreFault
from sessions.events import Journalled, decode_journalled
from sessions.replicas.rpc import Rpc
from sessions.running import runner
from sessions.store.client import WATCH, run_script
from sessions.store.history import History
from sessions.store.ownership import Ownership, RunningTurn
from sessions.store_errors import store_errors

AGAIN_S = 0.2
LISTEN_S = 1.0
_log = structlog.get_logger("midstream.relay")


def channel_of(replica: str) -> str:
    """Return a replica's channel."""
    return f"ms:to:{replica}"


class Relay:
    """Listens on this replica's channel.

    `branched` is called when another branch became active.

    Messages are mainly events of conversations with connections here, and changes of who watches. They can be lost while the
    channel reconnects. A gap shows by its seq, and is filled from the journal.
    """

    def __init__(
        self,
        client: Redis,
        *,
        replica: str,
        directory: ConversationRegistry,
        history: History,
        rpc: Rpc,
        branched: Callable[[Conversation], object],
    ) -> None:
        self._client = client
        self._channel = channel_of(replica)
        self._directory = directory
        self._history = history
        self._rpc = rpc
        self._branched = branched
        self._stale: list[Conversation] = []
        self._wake = asyncio.Event()

    async def listen(self) -> None:
        """Take messages until cancelled."""
        while True:
            try:
                await self._listen()
            except StoreDown:
                await asyncio.sleep(AGAIN_S)

    async def _listen(self) -> None:
        with store_errors():
            subscription = await self._subscription()
        async with subscription as channel:
            with store_errors():
                await channel.subscribe(self._channel)
            while True:
                with store_errors():
                    message = await channel.get_message(timeout=LISTEN_S)
                if message is not None and message["type"] == "message":
                    self._try_to_take(message["data"])
                elif message is not None:
                    self._begin()

    async def _subscription(self) -> PubSub:
        """Return a subscription, in a cluster at any master: each gets all messages, and one may be down."""
        cluster = cast("object", self._client)
        if not isinstance(cluster, RedisCluster):
            return self._client.pubsub()
        await cluster.initialize()
        return cluster.pubsub(node=random.choice(cluster.get_primaries()))

    def _begin(self) -> None:
        """Handle a subscription of the channel. It may be a repeated one: the client reconnects by itself, and loses messages."""
        self._rpc.wake()
        for conversation in self._directory:
            if conversation.published.followed and conversation.live is None:
                self.catch_up(conversation)

    async def fill(self) -> None:
        """Read missed events from the journal, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._stale:
                conversation = self._stale.pop()
                try:
                    if (meta := await self._history.load(conversation.keys)) is not None:
                        await catch_up_to(self._history, conversation, meta.epoch, meta.seq)
                except StoreFault:
                    continue  # logged there; the conversation's next event is another reason to look
                except StoreDown:
                    self.catch_up(conversation)
                    await asyncio.sleep(AGAIN_S)
                except Exception:  # noqa: BLE001 - as above
                    _log.exception("conversation not followed")
                finally:
                    self._directory.release(conversation)

    def _try_to_take(self, message: bytes) -> None:
        try:
            self._take(message)
        except Exception:  # noqa: BLE001 - a task's boundary: a message of another version must not end the service
            _log.exception("message not understood")

    def _take(self, message: bytes) -> None:
        kind, _, rest = message.partition(b" ")
        if kind == b"mail":
            self._rpc.wake()
            return
        size, _, rest = rest.partition(b" ")
        conversation = self._directory.by_key(rest[: int(size)].decode())
        if conversation is None:
            return
        body = rest[int(size) :]
        if kind == b"event":
            self.deliver(conversation, [decode_journalled(body)])
        elif kind == b"watchers":
            self._watchers(conversation, body.decode().split())
        elif kind == b"branch":
            self._branched(conversation)
        elif kind == b"deleted":
            conversation.publish_deleted(body.decode())

    def deliver(self, conversation: Conversation, events: Sequence[Journalled]) -> None:
        """Send attached connections events that no turn of this replica journalled.

        If there is a gap before them, or the store has lost published ones, the store is read.
        """
        conversation.note_change()
        conversation.others.note_announced(events[-1].seq)
        if (live := conversation.live) is not None and live.waits and events[-1].seq > conversation.known.seq:
            live.tool_round.lose()
        if conversation.live is not None or not conversation.published.followed:
            return
        if events[0].seq <= conversation.published.seq + 1 <= events[-1].seq:
            conversation.take_over(events)
        else:
            self.catch_up(conversation)

    def publish_turn(self, turn: RunningTurn, events: Sequence[Journalled]) -> None:
        """Like `deliver`, for a conversation that may not be live here."""
        conversation = self._directory.get(turn.owner, turn.conversation_id)
        if conversation is not None:
            self.deliver(conversation, events)

    def catch_up(self, conversation: Conversation) -> None:
        """Request a read of the store for events that attached connections missed."""
        if conversation not in self._stale:
            self._directory.hold(conversation)
            self._stale.append(conversation)
        self._wake.set()

    def _watchers(self, conversation: Conversation, names: list[str]) -> None:
        others = [name for name in names if channel_of(name) != self._channel]
        conversation.others.note_watched(watched=bool(others))
        runner.cancel_unattended(conversation)


class Subscriptions:
    """Enters this replica in the store's lists of watchers, and removes it."""

    def __init__(self, client: Redis, *, ownership: Ownership, directory: ConversationRegistry) -> None:
        self._client = client
        self._ownership = ownership
        self._directory = directory

    async def begin(self, conversation: Conversation) -> None:
        """Get every event of the conversation from now on. Raises NotFound, StoreDown."""
        keys = [conversation.keys.conversation]
        async with conversation.write_lock:
            if conversation.others.watching:
                return
            if await run_script(self._client, WATCH, keys, [self._ownership.replica]) is None:
                raise NotFound(f'There is no conversation "{conversation.conversation_id}".')
            conversation.others.watching = True

    async def try_to_begin(self, conversation: Conversation) -> None:
        """Like `begin`, but if the store takes no writes `reconcile` begins later.

        Raises NotFound, and StoreDown if the store does not answer at all: a read would wait for it as long again.
        """
        try:
            await self.begin(conversation)
        except StoreDown as trouble:
            if isinstance(trouble.__cause__, TimeoutError):
                raise

    async def end(self, conversation: Conversation) -> None:
        """Stop watching a conversation without connections here. If the store does not answer, `reconcile` does it later."""
        with suppress(StoreDown):
            await self._end(conversation)

    async def reconcile(self) -> list[Conversation]:
        """Leave conversations without connections, and remove dead replicas that alone watch a turn.

        Retry failed begins; return those conversations, since events may have been missed. Raises StoreDown.
        """
        for conversation in self._directory:
            if conversation.others.watching and conversation.is_unused:
                await self._end(conversation)
        for conversation in self._directory.with_turns():
            if conversation.others.watched and not conversation.subscribers:
                with self._directory.held(conversation):
                    await self._forget_the_dead(conversation)
        unwatched = [one for one in self._directory if one.subscribers and not one.others.watching]
        return [one for one in unwatched if await self._begins(one)]

    async def _begins(self, conversation: Conversation) -> bool:
        try:
            await self.begin(conversation)
        except NotFound:  # it has no messages yet, or was deleted
            return False
        except StoreFault:  # logged there; an unreadable conversation has no events
            return False
        return True

    async def _end(self, conversation: Conversation) -> None:
        async with conversation.write_lock:
            if conversation.others.watching and conversation.is_unused:
                watchers = await self._leave(conversation, [self._ownership.replica])
                conversation.others.watching = False
                conversation.others.watched = bool(watchers)
        self._directory.drop_if_idle(conversation)

    async def _forget_the_dead(self, conversation: Conversation) -> None:
        watchers = await self._leave(conversation, [])
        dead = [name for name in watchers if not await self._ownership.is_alive(name)]
        conversation.others.watched = bool(await self._leave(conversation, dead) if dead else watchers)

    async def _leave(self, conversation: Conversation, replicas: Sequence[str]) -> list[str]:
        """Remove replicas from the list; return the others on it, without this one.

        Asks again if a change came before the answer, since either may be the newer one.
        """
        while True:
            news = conversation.others.news
            try:
                answer = await run_script(
                    self._client, WATCH, [conversation.keys.conversation], ["", *replicas]
                )
            except StoreFault:  # logged there; it has no list of watchers
                return []
            if conversation.others.news == news:
                break
        watchers: list[str] = (answer or b"").decode().split()
        return [name for name in watchers if name != self._ownership.replica]
