"""Handles each client event: translates it to frames of the native socket, which one handler answers for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import assert_never

import msgspec

from connections.line.connection import Connection, Handler
from connections.line.requests import Chained, Slow
from connections.native.handler import Asked
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
    NewItem,
    OutputClear,
    Part,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
    TranscriptionUpdate,
)
from connections.realtime.parts import brought, shows, uploaded
from connections.realtime.problems import Invalid
from connections.realtime.server_events import ServerEvent
from connections.realtime.settings import NO_SOUND
from connections.realtime.sound.microphone import Microphone
from connections.realtime.sound.wishes import SoundSettings
from connections.realtime.telling import Said, Telling, truncated
from connections.spoken.talk import Said as Message
from connections.wire import frames
from connections.wire.scopes import KeyScope
from engine.images.image import Image
from sessions.errors import Overloaded
from sessions.service import Sessions
from sessions.shares import Subject

_NO_REPLIES = (
    "A transcription session makes no responses and takes no items but sound: send input_audio_buffer.append, or open a session "
    "of the type realtime."
)
TOLD_S = 60.0
"""How long the next event waits until a late reader was told of a deletion."""


MAX_BROUGHT = 2 * 1024 * 1024
"""Bytes of images that may wait until they are kept, of one connection; one item may always come."""
_WAITING = "Images that came before are still being stored. Send this item in a moment."


_OF_REPLIES = (ItemCreate, ItemDelete, ItemTruncate, OutputClear, ResponseCreate, frames.Cancel)
"""Events that a transcription session does not take."""


class RealtimeHandler:
    """Answers one session's events.

    `inner`: what answers frames; `take_read`: counts what is asked of the store beside them, and may refuse it; `microphone`:
    None, this server takes no sound.
    """

    def __init__(
        self,
        *,
        asking: Asking,
        telling: Telling,
        inner: Handler[Asked],
        sessions: Sessions,
        take_read: Callable[[Subject], None],
        microphone: Microphone | None = None,
    ) -> None:
        self._asking = asking
        self._telling = telling
        self._inner = inner
        self._sessions = sessions
        self._take_read = take_read
        self._microphone = microphone
        self._one_by_one = asyncio.Lock()
        self._under_way = 0
        self._creating = 0  # of these, how many are new items
        self._brought = 0  # bytes that these have as images

    def handle(self, connection: Connection, event: Asks | frames.Cancel) -> Slow | None:
        """Decides at once, but behind what takes its time in its turn; gives back what waits for the store. Raises Refused.

        New items hold up no cancel: it is of a reply that was asked for before them.
        """
        if self._asking.settings.transcribes and isinstance(event, _OF_REPLIES):
            raise Invalid(_NO_REPLIES, field="type", code="unsupported_event")
        if isinstance(event, InputAppend):
            self._sound().append(event.audio)
            return None
        overtakes = isinstance(event, frames.Cancel) and self._under_way == self._creating
        if (self._under_way and not overtakes) or self._takes_time(event):
            return self._in_turn(connection, event)
        return self._at_once(connection, event)

    def _takes_time(self, event: Asks | frames.Cancel) -> bool:
        """Return whether later events have to wait: for the store, or until sound is understood."""
        match event:
            case ItemDelete() | InputCommit():
                return True
            case ItemCreate():
                hears = self._microphone is not None and any(part.audio for part in event.item.content or ())
                return hears or shows(event.item)
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
        is_new = isinstance(event, ItemCreate)
        size = brought(event.item) if isinstance(event, ItemCreate) else 0
        if self._brought and self._brought + size > MAX_BROUGHT:
            raise Overloaded(_WAITING)
        self._under_way, self._creating = self._under_way + 1, self._creating + is_new
        self._brought += size
        try:
            async with self._one_by_one:
                match event:
                    case ItemDelete():
                        await self._delete(connection, event)
                    case InputCommit():
                        await self._sound().commit()
                    case ItemCreate() if self._takes_time(event):
                        await self._create(connection, event)
                    case _:
                        slow = self._at_once(connection, event)
        finally:
            self._under_way, self._creating = self._under_way - 1, self._creating - is_new
            self._brought -= size
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
                return self._updated(self._asking.update(event))
            case TranscriptionUpdate():
                return self._updated(self._asking.update_beta(event))
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

    def _updated(self, updated: ServerEvent) -> tuple[ServerEvent, ...]:
        if self._microphone is not None:
            self._microphone.changed()
        return (updated,)

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
        if isinstance(frame, frames.Send) and frame.attachments:
            message = Message(frame, shown=self._asking.shown_in(frame.client_msg_id))
            return self._inner.handle(connection, message)
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

    async def _create(self, connection: Connection, event: ItemCreate) -> None:
        """Puts an item in once its sound is understood and its images are kept. Raises Refused."""
        new = await self._understood(event.item)
        item = self._asking.made(new, await self._uploaded(connection, new))
        new_images = [image for image in item.images if image.data]
        for _ in new_images:
            self._take_read(connection.caller.subject)
        await self._sessions.images.keep(connection.owner, *new_images, group=connection.caller.group)
        connection.push(Said(events=self._asking.put(item, behind=event.previous_item_id)))

    async def _uploaded(self, connection: Connection, new: NewItem) -> dict[str, Image]:
        """The images of an item that were uploaded before, by their ids, as far as so many may wait. Raises Refused."""
        digests = list(islice(dict.fromkeys(uploaded(new)), self._asking.most_images))
        for _ in digests:
            self._take_read(connection.caller.subject)
        if not digests:
            return {}
        return await self._sessions.images.known(connection.owner, self._asking.conversation_id, digests)

    async def _understood(self, new: NewItem) -> NewItem:
        """The item with the words of its sound. Raises Invalid."""
        parts = []
        for number, part in enumerate(new.content or ()):
            if part.type == "input_audio" and part.audio and self._microphone is not None:
                text = await self._microphone.understand(part.audio, f"item.content[{number}].audio")
                if not text:
                    why = "has no words that were understood."
                    raise Invalid(why, field=f"item.content[{number}].audio", code="no_speech")
                parts.append(Part(text=text))
            else:
                parts.append(part)
        return new if new.content is None else msgspec.structs.replace(new, content=parts)

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
