"""What a session's client asks, over a transport in memory: a deletion comes first, however late its client is told of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from connections.api.realtime.encoder import RealtimeCodec, RealtimeEventEncoder
from connections.api.realtime.endpoint import RealtimeHandler
from connections.api.realtime.session import RealtimeSession
from connections.authentication.caller import Caller
from connections.connection import Connection, Handler, PendingWork
from connections.http import EndpointName
from connections.limiters import Limiters
from connections.outbox import Outbox
from connections.protocol import frames
from engine.vision.image import Image
from sessions.events import Removed
from sessions.limits.shares import Subject
from sessions.records import Client, Owner
from sessions.service import Sessions
from tests.connections.connection.memory_transport import MemoryTransport
from tests.connections.factory import accepted, done
from tests.connections.realtime.client_mirror import LIMITS
from tests.sample_images import PNG


class Store:
    """Keeps images, but not before it may."""

    def __init__(self) -> None:
        self.kept: list[Image] = []
        self.requested, self.may = asyncio.Event(), asyncio.Event()

    async def keep(self, _: Owner, *images: Image, group: str) -> None:
        self.requested.set()
        await self.may.wait()
        self.kept += images


class Conversation:
    """Takes back and accepts at once, and says so to the one who asked."""

    def __init__(self, wire: MemoryTransport) -> None:
        self.read = list[Subject]()
        limits = msgspec.structs.replace(LIMITS, max_images=2)
        session = RealtimeSession(conversation_id="c", model="m", limits=limits)
        self.items = session.items
        encoder = RealtimeEventEncoder(session)
        self.codec = codec = RealtimeCodec(encoder)
        self.connection = Connection(
            wire,
            caller=Caller(Owner("ann", "laptop"), Client("ann", "laptop")),
            outbox=Outbox(max_bytes=10_000),
            tally=Limiters().tally(EndpointName.REALTIME),
            encode=codec.encode,
        )
        self.handler = RealtimeHandler(
            encoder=encoder,
            inner=cast("Handler[Any]", self),
            sessions=cast("Sessions", self),
            take_read=self.read.append,
        )
        self.taken_back = asyncio.Event()
        self.images = Store()

    def handle(self, connection: Connection, frame: frames.Request) -> None:
        if isinstance(frame, frames.Cancel):
            connection.push(frames.Cancelled(ref=frame.ref, already=True))
            return
        assert isinstance(frame, frames.Send)
        connection.push(accepted("turn_2", frame.client_msg_id))

    async def take_back(self, _: Owner, conversation_id: str, turn_id: str) -> None:
        self.connection.push(Removed(conversation_id=conversation_id, turn_id=turn_id, seq=4))
        self.taken_back.set()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[MemoryTransport, Conversation]]:
    wire = MemoryTransport()
    conversation = Conversation(wire)
    serving = asyncio.create_task(
        conversation.connection.serve(conversation.handler, conversation.codec.decode)
    )
    yield wire, conversation
    wire.client_disconnects()
    await serving


async def test_a_late_reader_finds_its_message_waiting_behind_a_deletion() -> None:
    async with served() as (wire, conversation):
        for event in (accepted("turn_1", "theirs", "Hi!"), done("turn_1", 0)):
            conversation.connection.push(event)
        await wire.next_event("response.done")
        wire.reads.clear()
        wire.client_sends({"type": "conversation.item.delete", "item_id": "item_1"})
        wire.client_sends({"type": "response.create"})
        await conversation.taken_back.wait()
        for _ in range(20):  # whoever thought now that no item waits would say so
            await asyncio.sleep(0)
        wire.reads.set()
        assert (await wire.next_event("conversation.item.deleted"))["item_id"] == "item_1"
        assert (await wire.next_event("error", "response.created"))["type"] == "response.created"


async def test_a_response_that_ends_before_it_begins_leaves_no_work_behind() -> None:
    conversation = Conversation(MemoryTransport())
    stored: list[PendingWork] = []

    async def store() -> None:
        raise AssertionError("nothing is stored for who has left")

    def handle(connection: Connection, frame: frames.Request) -> PendingWork:
        stored.append(store())
        return stored[-1]

    conversation.handle = handle  # type: ignore[method-assign, assignment]
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi!"}]}
    for event in ({"type": "conversation.item.create", "item": item}, {"type": "response.create"}):
        request = conversation.codec.decode(msgspec.json.encode(event).decode())
        slow = conversation.handler.handle(conversation.connection, request)
    assert slow is not None
    slow.close()
    assert [inspect.getcoroutinestate(one) for one in stored] == [inspect.CORO_CLOSED]


def created(*parts: dict[str, str], item_id: str) -> dict[str, Any]:
    item = {"type": "message", "id": item_id, "role": "user", "content": [*parts]}
    return {"type": "conversation.item.create", "item": item}


async def test_an_image_that_is_being_kept_holds_up_what_is_behind_it_and_no_cancel() -> None:
    async with served() as (wire, conversation):
        wire.client_sends(created({"type": "input_image", "image_url": PNG.url}, item_id="first"))
        wire.client_sends(created({"type": "input_text", "text": "And?"}, item_id="second"))
        await conversation.images.requested.wait()
        wire.client_sends({"type": "response.cancel"})
        assert (await wire.sent.get())["error"]["code"] == "response_cancel_not_active"
        assert len(conversation.read) == 1
        conversation.images.may.set()
        sent_events = [(await wire.sent.get())["item"]["id"] for _ in range(4)]
        assert sent_events == ["first", "first", "second", "second"]
        assert conversation.images.kept == [PNG.image]


async def test_no_image_stays_in_a_sessions_memory() -> None:
    conversation = Conversation(MemoryTransport())
    conversation.images.may.set()
    event = created({"type": "input_image", "image_url": PNG.url}, item_id="mine")
    request = conversation.codec.decode(msgspec.json.encode(event).decode())
    slow = conversation.handler.handle(conversation.connection, request)
    assert slow is not None
    await slow
    assert [image.data for item in conversation.items for image in item.images] == [b""]
