"""The sessions floor with one owner, as a connection uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypedDict, Unpack

import msgspec
from redis.asyncio import Redis

from engine.messages import Params
from engine.scripted import ScriptedEngine, Step
from sessions.commands.resumption import ReaderPosition
from sessions.conversation.conversation import Conversation
from sessions.conversation.history_page import HistoryPage, PageWithStatus
from sessions.errors import Refused
from sessions.events import Accepted, Done, ToolCall
from sessions.filters.chain import Filters
from sessions.filters.list_filter import FilterLists, list_filters
from sessions.observer import Observer
from sessions.records import Owner
from sessions.service import CallOutcome, Sessions
from sessions.store.codec import Keys
from sessions.tools.tool_registry import ToolRegistry
from sessions.turn.message_request import (
    Append,
    GenerationConfig,
    MessageRequest,
    OfferedTool,
    OnBusy,
    OnDisconnect,
    Placement,
)
from sessions.turn.policy import Policy
from sessions.turn.tool_calls import Decision, Result
from sessions.turn.turn import Cancel, Cancelled
from tests.sessions.recorder import WAIT_S, Recorder

CONVERSATION_ID = "room"


class Options(TypedDict, total=False):
    """What a send may say beside its content."""

    reader: Recorder
    client_msg_id: str
    conversation_id: str
    parent_id: str | msgspec.UnsetType | None
    place: Placement
    on_busy: OnBusy
    seen_off: int
    seen_turn_id: str
    on_disconnect: OnDisconnect
    grace_s: float
    system: str
    max_new_tokens: int
    tools: Sequence[OfferedTool]
    tool_choice: str


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
        return Keys.of(self.owner, CONVERSATION_ID)

    @property
    def live_conversation(self) -> Conversation:
        """The live part of the room."""
        live_conversation = self.sessions.directory.get(self.owner, CONVERSATION_ID)
        assert live_conversation is not None
        return live_conversation

    def begin_send(self, content: str, **options: Unpack[Options]) -> asyncio.Task[Refused | None]:
        send = MessageRequest(
            client_msg_id=options.get("client_msg_id") or f"msg-{next(self._ids)}",
            conversation_id=options.get("conversation_id", CONVERSATION_ID),
            content=content,
            place=options.get("place") or Append(options.get("parent_id", msgspec.UNSET)),
            on_busy=options.get("on_busy", "reject"),
            seen_off=options.get("seen_off"),
            seen_turn_id=options.get("seen_turn_id"),
            on_disconnect=options.get("on_disconnect", "cancel"),
            grace_s=options.get("grace_s", 0),
            ref="ref",
        )
        generation = GenerationConfig(
            Params(max_new_tokens=options.get("max_new_tokens")),
            options.get("system"),
            tools=tuple(options.get("tools", ())),
            tool_choice=options.get("tool_choice", "auto"),
        )
        return self.sessions.turns.send(self.owner, self._reader(options), send, generation)

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
        return await self._settled(await reader.next(Done, count=ended + 1))

    async def enqueue(self, content: str, **options: Unpack[Options]) -> Accepted:
        """Sends behind the running reply, and waits until the message is accepted there."""
        count = len(self.reader.of(Accepted)) + 1
        options["on_busy"] = "enqueue"
        self.begin_send(content, **options)
        return await self.reader.next(Accepted, count=count)

    async def play(self, content: str, *script: Step, **options: Unpack[Options]) -> Done:
        """One message and its whole reply, whatever pieces that has."""
        self.engine.script(script)
        requests = len(self.engine.requests)
        accepted = await self.send(content, **options)
        await eventually(lambda: len(self.engine.requests) > requests)
        return await self.finish(accepted.turn_id, self._reader(options))

    async def follow(self, *script: Step, reader: Recorder | None = None) -> Done:
        """The turn that follows calls, to its end; its reply was scripted before, unless it is here."""
        if script:
            self.engine.script(script)
        reader = reader or self.reader
        ended = {done.turn_id for done in reader.of(Done)}

        def begun() -> list[str]:
            return [one.turn_id for one in reader.of(Accepted) if one.follows and one.turn_id not in ended]

        await reader.until(lambda: bool(begun()))
        turn_id = begun()[0]
        await eventually(lambda: any(requested.request_id == turn_id for requested in self.engine.requests))
        return await self.finish(turn_id, reader)

    async def finish(self, turn_id: str, reader: Recorder | None = None) -> Done:
        """Steps the engine until a turn has its end."""
        reader = reader or self.reader
        while (done := next((one for one in reader.of(Done) if one.turn_id == turn_id), None)) is None:
            engine = self.engine.statistics()
            await (self.step(reader) if engine.running or engine.queued else asyncio.sleep(0))
        return await self._settled(done)

    async def stop(self, turn_id: str | None = None, **cancel: Any) -> Done:
        """Cancels, and gives the end of the turn that this meets."""
        met = self.cancel(turn_id, **cancel)
        assert not met.already

        def ends() -> list[Done]:
            return [done for done in self.reader.of(Done) if done.turn_id == met.turn_id]

        await self.reader.until(lambda: bool(ends()))
        return await self._settled(ends()[0])

    async def _settled(self, done: Done) -> Done:
        """Waits until a turn that has ended is stored, and its place is free."""

        def is_free() -> bool:
            conversation = self.sessions.directory.get(self.owner, done.conversation_id)
            return conversation is None or conversation.turn(done.turn_id) is None

        await eventually(is_free)
        return done

    async def result(
        self,
        call_id: str,
        content: str | None = None,
        *,
        error: str | None = None,
        place: str | None = CONVERSATION_ID,
    ) -> CallOutcome:
        """Says what came of a call."""
        result = Result(call_id=call_id, content=content, error=error)
        return await self.sessions.answer_call(self.owner, self.reader, place, result)

    async def decide(
        self, call: ToolCall, *, allow: bool = True, args: str | None = None, sha256: str | None = None
    ) -> CallOutcome:
        """Allows a call, or denies it."""
        seen = sha256 or call.args_sha256
        decision = Decision(call_id=call.call_id, args_sha256=seen, allow=allow, args=args)
        return await self.sessions.answer_call(self.owner, self.reader, CONVERSATION_ID, decision)

    def _reader(self, options: Options) -> Recorder:
        return options.get("reader") or self.reader

    async def wait_for_engine(self, turns: int = 1) -> None:
        """Waits until the room has so many turns, and the engine is asked about the newest."""
        await eventually(
            lambda: (
                len(self.live_conversation.turns) == turns
                and self.live_conversation.turns[-1].engine._limit is not None
            )
        )

    async def step(self, reader: Recorder | None = None) -> None:
        """One token, and wait until it was told."""
        before = len((reader or self.reader).events)
        self.engine.step()
        await (reader or self.reader).until(lambda: len((reader or self.reader).events) > before)

    def cancel(
        self,
        turn_id: str | None = None,
        *,
        client_msg_id: str | None = None,
        seen_off: int | None = None,
        rollback: bool = False,
        is_placed: bool = False,
    ) -> Cancelled:
        """Cancels one turn, what answers a message, or all of the room. `is_placed`: a turn's room is named, too."""
        cancel = Cancel(
            conversation_id=None if turn_id and not is_placed else CONVERSATION_ID,
            turn_id=turn_id,
            client_msg_id=client_msg_id,
            seen_off=seen_off,
            rollback=rollback,
        )
        met = self.sessions.turns.cancel(self.owner, cancel)
        return met or Cancelled(turn_id, already=True)

    async def history(
        self,
        reader: Recorder | None = None,
        *,
        limit: int = 50,
        before: str | None = None,
        leaf: str | None = None,
    ) -> HistoryPage:
        return (await self.shown(reader or self.reader, limit=limit, before=before, leaf=leaf)).page

    async def shown(
        self, reader: Recorder, *, limit: int = 50, before: str | None = None, leaf: str | None = None
    ) -> PageWithStatus:
        """A page of the room, and what was told of the wait."""
        return await self.sessions.history(
            self.owner, reader, CONVERSATION_ID, limit=limit, before=before, leaf=leaf
        )

    async def resume(self, reader: Recorder, seq: int, *, epoch: str | None = None) -> None:
        """A reader that came so far comes back to the room; without an `epoch`: to the one that it has."""
        if epoch is None:
            meta = await self.sessions.storage.history.load(self.keys)
            epoch = meta.epoch if meta else ""
        await self.sessions.resume(
            self.owner, reader, CONVERSATION_ID, ReaderPosition(epoch, seq), ref="back"
        )

    def leave(self, reader: Recorder | None = None) -> None:
        """A connection is gone."""
        (reader or self.reader).closed = True
        self.sessions.disconnect(reader or self.reader)

    async def messages(self) -> list[tuple[str, str]]:
        """Who said what, as the history has it; asked by a connection that leaves again."""
        reader = Recorder()
        page = await self.history(reader)
        self.sessions.disconnect(reader)
        return [(message.role, message.content) for message in page.messages]

    async def texts(self) -> list[str]:
        """What was said, as the history has it."""
        return [content for _, content in await self.messages()]

    def prompt(self) -> list[str]:
        """What the engine was given to read last."""
        return [message.content for message in self.engine.requests[-1].messages]

    async def another_device(self) -> Chat:
        """The same owner on one more connection, which is attached."""
        await self.history(reader := Recorder())
        return Chat(self.sessions, self.engine, self.owner, reader)

    async def take_back(self, turn_id: str) -> None:
        await self.sessions.take_back(self.owner, CONVERSATION_ID, turn_id)

    async def lose_lease(self) -> None:
        """As after the time in which this replica could not renew its lease: to all others it is dead."""
        await self.sessions.client.delete(f"ms:replica:{self.sessions.storage.ownership.replica}")

    async def reap(self) -> int:
        """Closes dead replicas' turns; how many."""
        return await self.sessions.reaper.reap()

    async def wait_idle(self) -> None:
        """Waits until no turn is left."""
        await eventually(lambda: self.sessions.statistics().turns == 0)


@asynccontextmanager
async def serving(
    store: Redis,
    engine: ScriptedEngine | None = None,
    *,
    alone: bool = True,
    observer: Observer | None = None,
    registry: ToolRegistry | None = None,
    replica: str | None = None,
    priority_client: Redis | None = None,
    **policy: Any,
) -> AsyncIterator[Chat]:
    """A chat of alice on a replica with a policy of its own. Without an engine, one that the test moves."""
    engine = engine or ScriptedEngine(by_hand=True, context_tokens=200)
    sessions = Sessions(
        client=store,
        engine=engine,
        policy=Policy(**({"ttl_s": 3600, "max_turns": 100} | policy)),
        observer=observer,
        tools=registry,
        replica=replica,
        priority_client=priority_client,
    )
    async with sessions.running(alone=alone):
        yield Chat(sessions, engine, Owner("anonymous", "alice"), Recorder())
    assert sessions.statistics().turns == 0


def filtering(*, incoming: Sequence[str] = (), outgoing: Sequence[str] = ()) -> Filters:
    """Filters of these words."""
    return Filters(list_filters(incoming=FilterLists(tuple(incoming)), outgoing=FilterLists(tuple(outgoing))))


async def eventually(happened: Callable[[], bool]) -> None:
    """Lets the loop turn until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not happened():  # noqa: ASYNC110 - what is looked at has no event of its own
            await asyncio.sleep(0)


async def running_turns_in_store(store: Redis) -> int:
    """How many turns the store names as running, of all replicas."""
    return sum([await store.hlen(key) async for key in store.scan_iter(match="ms:running*")])
