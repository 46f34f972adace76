"""The live conversations of this replica, those that each connection is attached to, and the replica's tasks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import structlog

from sessions.conversation.conversation import Attached, Conversation
from sessions.errors import InternalError, Refused
from sessions.records import Owner
from sessions.store.ownership import RunningTurn
from sessions.turn.turn import Subscriber, Turn


class ConversationRegistry:
    """Opens a conversation on demand, and drops it when it is not needed.

    `opened` and `closed` are called with its key in the store.
    """

    def __init__(
        self, *, opened: Callable[[str], None] | None = None, closed: Callable[[str], None] | None = None
    ) -> None:
        self._opened, self._closed = opened, closed
        self._live: dict[tuple[Owner, str], Conversation] = {}
        self._by_key: dict[str, Conversation] = {}
        self._attached: Attached = {}

    def __len__(self) -> int:
        return len(self._live)

    def get(self, owner: Owner, conversation_id: str) -> Conversation | None:
        """Return a live conversation, or None."""
        return self._live.get((owner, conversation_id))

    def open(self, owner: Owner, conversation_id: str) -> Conversation:
        """Return a conversation, live from here on; the caller uses it, or tidies up."""
        key = (owner, conversation_id)
        if key not in self._live:
            self._live[key] = new = Conversation(owner, conversation_id, attached=self._attached)
            self._by_key[new.keys.conversation] = new
            if self._opened is not None:
                self._opened(new.keys.conversation)
        return self._live[key]

    def by_key(self, key: str) -> Conversation | None:
        """Return a live conversation by its key in the store."""
        return self._by_key.get(key)

    def runs(self, turn: RunningTurn) -> bool:
        """Return whether a turn runs here."""
        conversation = self.get(turn.owner, turn.conversation_id)
        return conversation is not None and conversation.turn(turn.turn_id) is not None

    def with_turns(self) -> list[Conversation]:
        """The conversations with turns here."""
        return [conversation for conversation in self._live.values() if conversation.turns]

    def unsaved(self) -> int:
        """Return the number of turns here with published text or ends that the store does not have."""
        return sum(live.is_unsaved for one in self._live.values() for live in one.turns)

    def watched_elsewhere(self) -> list[Conversation]:
        """Return the conversations with turns here that only other replicas' connections are attached to."""
        return [
            conversation
            for conversation in self.with_turns()
            if conversation.others.watched and not conversation.subscribers
        ]

    def watched_for_nobody(self) -> list[Conversation]:
        """Return the conversations that this replica watches without an attached connection."""
        return [one for one in self._live.values() if one.others.watching and one.is_unused]

    def unwatched(self) -> list[Conversation]:
        """Return the conversations with connections here that this replica does not watch yet."""
        return [one for one in self._live.values() if one.subscribers and not one.others.watching]

    def followed(self) -> list[Conversation]:
        """Return the conversations with connections here whose events other replicas may write."""
        return [one for one in self._live.values() if one.published.followed and one.live is None]

    @contextmanager
    def using(self, owner: Owner, conversation_id: str) -> Iterator[Conversation]:
        """Yield a conversation that stays live while the context lasts."""
        with self.held(conversation := self.open(owner, conversation_id)):
            yield conversation

    @contextmanager
    def held(self, conversation: Conversation) -> Iterator[None]:
        """Keep a conversation live while the context lasts."""
        self.hold(conversation)
        try:
            yield
        finally:
            self.release(conversation)

    def hold(self, conversation: Conversation) -> None:
        """Keep a conversation live; calls are counted."""
        conversation.users += 1

    def release(self, conversation: Conversation) -> None:
        """Undo one `hold`."""
        conversation.users -= 1
        self.drop_if_idle(conversation)

    def drop_if_idle(self, conversation: Conversation) -> None:
        """Drop a conversation that is not needed any more."""
        if conversation.idle and self.by_key(conversation.keys.conversation) is conversation:
            del self._live[conversation.owner, conversation.conversation_id]
            del self._by_key[conversation.keys.conversation]
            if self._closed is not None:
                self._closed(conversation.keys.conversation)

    def attached(self, subscriber: Subscriber) -> list[Conversation]:
        """Return the conversations that a connection is attached to."""
        return list(self._attached.get(subscriber, ()))

    def detach(self, subscriber: Subscriber) -> list[Conversation]:
        """Detach a connection from all conversations; return them, to be tidied up."""
        conversations = list(self._attached.pop(subscriber, ()))
        for conversation in conversations:
            conversation.leave(subscriber)
        return conversations

    def readers(self) -> set[Subscriber]:
        """Return the connections that expect the end of a turn of `unfinished`."""
        return {
            subscriber
            for conversation, live in self.unfinished()
            for subscriber in (live.sender, *conversation.subscribers)
        }

    def unfinished(self) -> list[tuple[Conversation, Turn]]:
        """Return the turns, and messages being accepted, whose end is not published yet.

        Turns that wait for calls count only if a tool runs here for them.
        """
        return [
            (conversation, live)
            for conversation in self._live.values()
            for live in (*conversation.turns, *conversation.accepting)
            if not (live.ended.is_set() or (live.waits and live.tool_round.idle.is_set()))
        ]


T = TypeVar("T")

_log = structlog.get_logger("midstream.sessions")


class BackgroundTasks:
    """The tasks of a replica, in one group that ends with it. Created before the replica runs, usable while it does."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accept tasks while the context lasts; it ends when they have."""
        async with asyncio.TaskGroup() as self._group:
            yield

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task in the background."""
        if self._group is None:
            work.close()
            raise RuntimeError("The replica does not run.")
        return self._group.create_task(work)


class ShieldedChanges:
    """Changes of conversations that are completed even if the requester leaves."""

    def __init__(self, *, directory: ConversationRegistry, tasks: BackgroundTasks) -> None:
        self._directory = directory
        self._tasks = tasks

    def begin(
        self, conversation: Conversation, change: Coroutine[None, None, None]
    ) -> asyncio.Task[Refused | None]:
        """Begin a change, and keep the conversation live until it is done."""
        self._directory.hold(conversation)
        changing = self._tasks.begin(refusal_of(change))
        changing.add_done_callback(lambda _: self._directory.release(conversation))
        return changing

    async def complete(self, conversation: Conversation, change: Coroutine[None, None, None]) -> None:
        """Wait until a change is done. Raises Refused."""
        if (refusal := await asyncio.shield(self.begin(conversation, change))) is not None:
            raise refusal


async def refusal_of(work: Coroutine[None, None, None]) -> Refused | None:
    """Run it; return the refusal, which for a defect has the number of a log entry."""
    try:
        await work
    except Refused as refusal:
        return refusal
    except Exception:  # noqa: BLE001 - see above
        return incident()
    return None


def incident() -> InternalError:
    """Log the exception being handled; the requester gets only its number."""
    number = secrets.token_hex(4)
    _log.exception("request failed", incident=number)
    return InternalError(incident=number)
