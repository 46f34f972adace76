"""Handles each client event: translates it to frames of the native socket, which one handler answers for both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

import msgspec

from connections.line.connection import Connection, Handler
from connections.line.requests import Chained, Slow
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
    Part,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from connections.realtime.problems import Invalid
from connections.realtime.server_events import ServerEvent
from connections.realtime.sound.microphone import Microphone
from connections.realtime.sound.wishes import SoundSettings
from connections.realtime.telling import Said, Telling, truncated
from connections.wire import frames
from connections.wire.scopes import KeyScope
from sessions.service import Sessions

NO_SOUND = "This server does not take sound: its operator can enable that (MIDSTREAM_SPEECH)."
TOLD_S = 60.0
"""How long the next event waits until a late reader was told of a deletion."""


class RealtimeHandler:
    """Answers one session's events. `inner`: answers frames; `microphone`: None if this server takes no sound."""

    def __init__(
        self,
        *,
        asking: Asking,
        telling: Telling,
        inner: Handler[frames.Request],
        sessions: Sessions,
        microphone: Microphone | None = None,
    ) -> None:
        self._asking = asking
        self._telling = telling
        self._inner = inner
        self._sessions = sessions
        self._microphone = microphone
        self._one_by_one = asyncio.Lock()
        self._under_way = 0

    def handle(self, connection: Connection, event: Asks | frames.Cancel) -> Slow | None:
        """Decide at once, but after earlier slow events; return work that waits for the store. Raises Refused."""
        if isinstance(event, InputAppend):
            self._sound().append(event.audio)
            return None
        if self._under_way or self._takes_time(event):
            return self._in_turn(connection, event)
        return self._at_once(connection, event)

    def _takes_time(self, event: Asks | frames.Cancel) -> bool:
        """Return whether later events have to wait: for the store, or until sound is understood."""
        match event:
            case ItemDelete() | InputCommit():
                return True
            case ItemCreate():
                return self._microphone is not None and any(part.audio for part in event.item.content or ())
            case _:
                return False

    def _sound(self) -> Microphone:
        """Return the microphone. Raises Invalid if this server takes no sound."""
        if self._microphone is None:
            raise Invalid(NO_SOUND, field="type", code="unsupported_content_type")
        return self._microphone

    async def _in_turn(self, connection: Connection, event: Asks | frames.Cancel) -> None:
        """Wait for earlier slow events, and those that wait for them. This begins before the next event is read."""
        slow: Slow | None = None
        self._under_way += 1
        try:
            async with self._one_by_one:
                match event:
                    case ItemDelete():
                        await self._delete(connection, event)
                    case InputCommit():
                        await self._sound().commit()
                    case ItemCreate() if self._takes_time(event):
                        understood = await self._understood(event)
                        connection.push(Said(events=self._asking.create(understood)))
                    case _:
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
            case ItemTruncate():
                return self._truncate(connection, event)
            case OutputClear():
                return self._sound().clear_output()
            case _:
                connection.push(Said(events=self._answered(event)))
                return None

    def _answered(self, event: Asks) -> tuple[ServerEvent, ...]:
        """Return answers that need neither a turn nor the store. Raises Invalid."""
        match event:
            case SessionUpdate():
                updated = self._asking.update(event)
                if self._microphone is not None:
                    self._microphone.changed()
                return (updated,)
            case ItemCreate():
                return self._asking.create(event)
            case ItemRetrieve():
                return (self._asking.retrieve(event),)
            case InputClear():
                self._sound().clear()
                return ()
            case (
                InputAppend()
                | InputCommit()
                | ItemTruncate()
                | OutputClear()
                | ResponseCreate()
                | ResponseCancel()
                | ItemDelete()
            ):
                raise TypeError("This is not answered at once.")
            case _:
                assert_never(event)

    def _respond(self, connection: Connection, event: ResponseCreate) -> Slow | None:
        """Send what waits. The first message is registered at once, so a later cancel finds it. Raises Refused."""
        first, *rest = self._asking.ask(event)
        known_by = self._asking.on_its_way
        sound = self._asking.begun.sound
        try:
            slow = self._ask(connection, first, sound)
        except BaseException:
            self._asking.give_back(known_by)
            raise
        if slow is None:
            return self._send(connection, None, rest, sound, known_by) if rest else None
        return Chained(self._send(connection, slow, rest, sound, known_by), slow)

    def _ask(self, connection: Connection, frame: frames.Request, sound: SoundSettings | None) -> Slow | None:
        """Send one of them; the reply to a message is spoken if sound is requested."""
        if isinstance(frame, frames.Send) and sound is not None and sound.speaks:
            return self._sound().answer(frame, sound.output)
        return self._inner.handle(connection, frame)

    async def _send(
        self,
        connection: Connection,
        slow: Slow | None,
        rest: Sequence[frames.Request],
        sound: SoundSettings | None,
        known_by: str | None,
    ) -> None:
        try:
            if slow is not None:
                await slow
            for frame in rest:
                if (slow := self._ask(connection, frame, sound)) is not None:
                    await slow
        except BaseException:
            self._asking.give_back(known_by)
            raise

    def _truncate(self, connection: Connection, event: ItemTruncate) -> Slow | None:
        """Truncate an item. Raises Invalid."""
        item = self._asking.item(event.item_id, "item_truncate_invalid_item_id")
        if item.sound_ms is None or item.role != "assistant":
            why = "The item is text: it can't be truncated by the time of its sound."
            raise Invalid(why, field="item_id", code="unsupported_content_type")
        if item.status != "in_progress":
            connection.push(Said(events=(truncated(item),)))
            return None
        return self._sound().truncate(item.turn_id, event.audio_end_ms)

    async def _understood(self, event: ItemCreate) -> ItemCreate:
        """Return the item with the words of its sound. Raises Invalid."""
        parts = []
        for number, part in enumerate(event.item.content or ()):
            if part.type == "input_audio" and part.audio:
                text = await self._sound().understand(part.audio, f"item.content[{number}].audio")
                if not text:
                    why = "has no words that were understood."
                    raise Invalid(why, field=f"item.content[{number}].audio", code="no_speech")
                parts.append(Part(text=text))
            else:
                parts.append(part)
        item = msgspec.structs.replace(event.item, content=parts)
        return msgspec.structs.replace(event, item=item)

    async def _delete(self, connection: Connection, event: ItemDelete) -> None:
        """Delete an item. Raises Invalid, and Refused if others follow the item."""
        connection.caller.grant.check(KeyScope.MANAGE)
        deleted = self._asking.delete(event.item_id)
        if isinstance(deleted, str):
            await self._take_back(connection, deleted)
        else:
            connection.push(Said(events=(deleted,)))

    async def _take_back(self, connection: Connection, turn_id: str) -> None:
        """Roll back an exchange, and tell all attached connections; here its message waits again. Raises Refused."""
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
