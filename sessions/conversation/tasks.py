"""The boundary of tasks: failures reach the requester alone. And the group of all tasks of a replica."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from sessions.conversation.conversation import Conversation
from sessions.conversation.registry import ConversationRegistry
from sessions.errors import InternalError, Refused

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
