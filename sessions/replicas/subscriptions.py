"""Records in the store which conversations have connections here, so that this replica gets their events.

Other replicas' turns continue while any replica watches; one whose lease has expired does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from redis.asyncio import Redis

from sessions.conversation.conversation import Conversation
from sessions.conversation.registry import ConversationRegistry
from sessions.errors import NotFound, StoreDown, StoreFault
from sessions.replicas.shard_channels import ShardChannels
from sessions.store.ownership import Ownership
from sessions.store.redis.client import LEAVE, WATCH, run_script


class Subscriptions:
    """Enters and removes this replica."""

    def __init__(
        self,
        client: Redis,
        *,
        ownership: Ownership,
        directory: ConversationRegistry,
        channels: ShardChannels | None = None,
    ) -> None:
        self._client = client
        self._channels = channels
        self._ownership = ownership
        self._directory = directory

    async def begin(self, conversation: Conversation) -> None:
        """Get every event of the conversation from here on. Raises NotFound, StoreDown."""
        async with conversation.others.entering:
            if conversation.others.watching:
                return
            keys = [conversation.keys.conversation]
            if self._channels is not None:
                await self._channels.joined(conversation.keys.conversation)
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
        """Leave: no connection is attached here. If the store does not answer, `reconcile` does it later."""
        with suppress(StoreDown):
            await self._end(conversation)

    async def reconcile(self) -> list[Conversation]:
        """Leave conversations without connections, and remove dead replicas that alone watch a turn.

        Retry failed begins; return those conversations, since events may have been missed. Raises StoreDown.
        """
        for conversation in self._directory.watched_for_nobody():
            await self._end(conversation)
        for conversation in self._directory.watched_elsewhere():
            with self._directory.held(conversation):
                await self._forget_the_dead(conversation)
        return [one for one in self._directory.unwatched() if await self._begins(one)]

    async def _begins(self, conversation: Conversation) -> bool:
        try:
            await self.begin(conversation)
        except NotFound:  # it has no messages yet, or was deleted
            return False
        except StoreFault:  # logged there; an unreadable conversation has no events
            return False
        return True

    async def _end(self, conversation: Conversation) -> None:
        async with conversation.others.entering:
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
                answer = await run_script(self._client, LEAVE, [conversation.keys.conversation], replicas)
            except StoreFault:  # logged there; it has no list of watchers
                return []
            if conversation.others.news == news:
                break
        watchers: list[str] = answer.decode().split()
        return [name for name in watchers if name != self._ownership.replica]
