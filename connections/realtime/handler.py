"""What each client event does: a thin translation to the frames of the native socket, which one handler answers for both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, assert_never

from connections.line.connection import Connection, Handler
from connections.openai.unserved import NO_SOUND
from connections.realtime.asking import Asking
from connections.realtime.client_events import (
    Asks,
    InputAppend,
    InputClear,
    InputCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from connections.realtime.problems import Invalid
from connections.realtime.server_events import ServerEvent
from connections.realtime.telling import Said, Telling
from connections.wire import frames
from connections.wire.scopes import KeyScope
from sessions.service import Sessions

Slow = Coroutine[Any, Any, None]
TOLD_S = 60.0
"""How long the next event waits for a late reader to be told of a deletion."""


class RealtimeHandler:
    """Answers one session's events. `inner`: what answers frames."""

    def __init__(
        self, *, asking: Asking, telling: Telling, inner: Handler[frames.Request], sessions: Sessions
    ) -> None:
        self._asking = asking
        self._telling = telling
        self._inner = inner
        self._sessions = sessions
        self._one_by_one = asyncio.Lock()
        self._under_way = 0

    def handle(self, connection: Connection, event: Asks | frames.Cancel) -> Slow | None:
        """Decides at once, but behind a deletion in its turn; gives back what waits for the store. Raises Refused."""
        if self._under_way or isinstance(event, ItemDelete):
            return self._in_turn(connection, event)
        return self._at_once(connection, event)

    async def _in_turn(self, connection: Connection, event: Asks | frames.Cancel) -> None:
        """Waits for the deletions before it, and for what waits for those; this begins before the next event is read."""
        slow: Slow | None = None
        self._under_way += 1
        try:
            async with self._one_by_one:
                if isinstance(event, ItemDelete):
                    await self._delete(connection, event)
                else:
                    slow = self._at_once(connection, event)
        finally:
            self._under_way -= 1
        if slow is not None:
            await slow

    def _at_once(self, connection: Connection, event: Asks | frames.Cancel) -> Slow | None:
        match event:
            case frames.Cancel():
                return self._inner.handle(connection, event)
            case ResponseCreate():
                return self._respond(connection, event)
            case _:
                connection.push(Said(events=self._answered(event)))
                return None

    def _answered(self, event: Asks) -> tuple[ServerEvent, ...]:
        """What is answered without a turn or the store. Raises Invalid."""
        match event:
            case SessionUpdate():
                return (self._asking.update(event),)
            case ItemCreate():
                return self._asking.create(event)
            case ItemRetrieve():
                return (self._asking.retrieve(event),)
            case ItemTruncate():
                why = "The item is text: it can't be truncated by the time of its sound."
                raise Invalid(why, field="item_id", code="unsupported_content_type")
            case InputAppend() | InputCommit() | InputClear() | OutputClear():
                raise Invalid(NO_SOUND, field="type", code="unsupported_content_type")
            case ResponseCreate() | ResponseCancel() | ItemDelete():
                raise TypeError("This is not answered at once.")
            case _:
                assert_never(event)

    def _respond(self, connection: Connection, event: ResponseCreate) -> Slow | None:
        """Sends what waits. The first of it is noted at once, so that a cancel behind it finds it. Raises Refused."""
        first, *rest = self._asking.ask(event)
        known_by = self._asking.on_its_way
        try:
            slow = self._inner.handle(connection, first)
        except BaseException:
            self._asking.give_back(known_by)
            raise
        return None if slow is None and not rest else self._send(connection, slow, rest, known_by)

    async def _send(
        self, connection: Connection, slow: Slow | None, rest: Sequence[frames.Request], known_by: str | None
    ) -> None:
        try:
            if slow is not None:
                await slow
            for frame in rest:
                if (slow := self._inner.handle(connection, frame)) is not None:
                    await slow
        except BaseException:
            self._asking.give_back(known_by)
            raise

    async def _delete(self, connection: Connection, event: ItemDelete) -> None:
        """Raises Invalid, and Refused where others stand behind the item."""
        connection.caller.grant.check(KeyScope.MANAGE)
        deleted = self._asking.delete(event.item_id)
        if isinstance(deleted, str):
            await self._take_back(connection, deleted)
        else:
            connection.push(Said(events=(deleted,)))

    async def _take_back(self, connection: Connection, turn_id: str) -> None:
        """Takes an exchange out, of which all who are attached are told; here its message waits again then. Raises Refused."""
        told = asyncio.Event()
        self._telling.freeing[turn_id] = told.set
        try:
            await self._sessions.take_back(connection.owner, self._asking.conversation_id, turn_id)
        except BaseException:
            self._telling.freeing.pop(turn_id, None)
            raise
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_S):
                await told.wait()
