"""What each client event does: a thin translation to the frames of the native socket, which one handler answers for both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_never

from connections import frames
from connections.connection import Connection, Handler
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
from sessions.service import Sessions

Slow = Coroutine[Any, Any, None]


class RealtimeHandler:
    """Answers one session's events. `inner`: what answers frames."""

    def __init__(self, *, asking: Asking, telling: Telling, inner: Handler, sessions: Sessions) -> None:
        self._asking = asking
        self._telling = telling
        self._inner = inner
        self._sessions = sessions
        self._one_by_one = asyncio.Lock()  # what is asked behind a deletion sees what waits again

    def handle(self, connection: Connection, event: Asks | frames.Cancel) -> Slow | None:
        """Decides at once; gives back what waits for the store. Raises Refused."""
        match event:
            case frames.Cancel():
                return self._inner.handle(connection, event)
            case ResponseCreate():
                return self._respond(connection, event)
            case ItemDelete():
                return self._delete(connection, event)
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
                why = "item_id: the item is text: it can't be truncated by the time of its sound."
                raise Invalid(why, code="unsupported_content_type")
            case InputAppend() | InputCommit() | InputClear() | OutputClear():
                raise Invalid("type: sound is not served here.", code="unsupported_content_type")
            case ResponseCreate() | ResponseCancel() | ItemDelete():
                raise TypeError("This is not answered at once.")
            case _:
                assert_never(event)

    async def _respond(self, connection: Connection, event: ResponseCreate) -> None:
        """Sends what waits; this begins before the next event is read, so that a cancel behind it finds it."""
        async with self._one_by_one:
            send = self._asking.ask(event)
        try:
            slow = self._inner.handle(connection, send)
            if slow is not None:
                await slow
        except BaseException:
            self._asking.give_back(send.client_msg_id)
            raise

    def _delete(self, connection: Connection, event: ItemDelete) -> Slow | None:
        deleted = self._asking.delete(event.item_id)
        if isinstance(deleted, str):
            return self._take_back(connection, deleted)
        connection.push(Said(events=(deleted,)))
        return None

    async def _take_back(self, connection: Connection, turn_id: str) -> None:
        """Takes an exchange out, of which all who are attached are told. Raises Refused where others stand behind it."""
        async with self._one_by_one:
            self._telling.freeing.add(turn_id)
            try:
                await self._sessions.take_back(connection.owner, self._asking.conversation_id, turn_id)
            except BaseException:
                self._telling.freeing.discard(turn_id)
                raise
