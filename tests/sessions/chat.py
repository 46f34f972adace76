"""The sessions floor with one owner, as a connection uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TypedDict, Unpack

import msgspec

from engine.messages import Params
from engine.scripted import ScriptedEngine
from sessions.conversation import Conversation, OnBusy, Send
from sessions.errors import Refused
from sessions.events import Accepted, Done
from sessions.history import Keys
from sessions.paging import HistoryPage
from sessions.records import Owner
from sessions.sending import Generation
from sessions.service import Cancelled, Sessions
from tests.sessions.recorder import WAIT_S, Recorder

ROOM = "room"


class Options(TypedDict, total=False):
    """What a send may say beside its content."""

    reader: Recorder
    client_msg_id: str
    conversation_id: str
    parent_id: str | msgspec.UnsetType | None
    on_busy: OnBusy
    system: str
    max_new_tokens: int


class Chat:
    """One owner's conversation on a replica whose engine the test moves by hand."""

    def __init__(self, sessions: Sessions, engine: ScriptedEngine, owner: Owner, reader: Recorder) -> None:
        self.sessions = sessions
        self.engine = engine
        self.owner = owner
        self.reader = reader
        self._ids = count(1)

    @property
    def keys(self) -> Keys:
        """The store's names for the room."""
        return Keys.of(self.owner, ROOM)

    @property
    def room(self) -> Conversation:
        """The live part of the room."""
        room = self.sessions._directory.get(self.owner, ROOM)
        assert room is not None
        return room

    def begin_send(self, content: str, **options: Unpack[Options]) -> asyncio.Task[Refused | None]:
        send = Send(
            client_msg_id=options.get("client_msg_id") or f"msg-{next(self._ids)}",
            conversation_id=options.get("conversation_id", ROOM),
            content=content,
            parent_id=options.get("parent_id", msgspec.UNSET),
            on_busy=options.get("on_busy", "reject"),
            ref="ref",
        )
        generation = Generation(Params(max_new_tokens=options.get("max_new_tokens")), options.get("system"))
        return self.sessions.send(self.owner, self._reader(options), send, generation)

    async def send(self, content: str, **options: Unpack[Options]) -> Accepted:
        """Sends, and gives `accepted`; raises what refuses it."""
        if (refusal := await self.begin_send(content, **options)) is not None:
            raise refusal
        return self._reader(options).of(Accepted)[-1]

    async def running(self, content: str, shown: str = "", **options: Unpack[Options]) -> Accepted:
        """Sends, and steps the engine until this much of the reply is shown."""
        requests = len(self.engine.requests)
        accepted = await self.send(content, **options)
        await eventually(lambda: len(self.engine.requests) > requests)
        reader = self._reader(options)
        while reader.text(accepted.turn_id) != shown:
            await self.step(reader)
        return accepted

    async def exchange(self, content: str, reply: str = "Well.", **options: Unpack[Options]) -> Done:
        """One message and its whole reply."""
        reader = self._reader(options)
        ended = len(reader.of(Done))
        self.engine.script(reply)
        await self.running(content, reply, **options)
        self.engine.step()
        return await reader.next(Done, count=ended + 1)

    def _reader(self, options: Options) -> Recorder:
        return options.get("reader") or self.reader

    async def step(self, reader: Recorder | None = None) -> None:
        """One token, and wait until it was told."""
        told = len((reader or self.reader).events)
        self.engine.step()
        await (reader or self.reader).until(lambda: len((reader or self.reader).events) > told)

    def cancel(
        self, turn_id: str | None = None, *, seen_off: int | None = None, rollback: bool = False
    ) -> Cancelled:
        """Cancels one turn, or all of the room."""
        return self.sessions.cancel(
            self.owner,
            conversation_id=None if turn_id else ROOM,
            turn_id=turn_id,
            seen_off=seen_off,
            rollback=rollback,
        )

    async def history(
        self, reader: Recorder | None = None, *, limit: int = 50, before: str | None = None
    ) -> HistoryPage:
        return await self.sessions.history(
            self.owner, reader or self.reader, ROOM, limit=limit, before=before
        )

    async def told(self) -> list[tuple[str, str]]:
        """Who said what, as the history has it; asked by a connection that leaves again."""
        reader = Recorder()
        page = await self.history(reader)
        self.sessions.disconnect(reader)
        return [(message.role, message.content) for message in page.messages]

    async def quiet(self) -> None:
        """Waits until no turn is left."""
        await eventually(lambda: self.sessions.statistics().turns == 0)


async def eventually(happened: Callable[[], bool]) -> None:
    """Lets the loop turn until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not happened():  # noqa: ASYNC110 - what is looked at has no event of its own
            await asyncio.sleep(0)
