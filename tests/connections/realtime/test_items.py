"""Items of a session: what is forgotten, and how many images may wait and go together."""

from __future__ import annotations

import msgspec
import pytest

from connections.api.realtime.events import InvalidEvent, NewItem, Part, ResponseCreate
from connections.api.realtime.session import (
    IMAGE_CHARS,
    MAX_CHARS,
    MAX_ITEMS,
    Item,
    Items,
    ItemState,
    RealtimeSession,
)
from connections.protocol.frames import Send
from tests.connections.realtime.client_mirror import LIMITS
from tests.sample_images import JPEG, PNG


def waits(item_id: str) -> Item:
    return Item(item_id=item_id, role="user", text=item_id, state=ItemState.WAITING)


def stored(item_id: str, **more: str) -> Item:
    return Item(item_id=item_id, role="assistant", text=more.get("text", item_id), turn_id="t")


def order(items: Items) -> list[str]:
    return [item.item_id for item in items]


def test_the_oldest_are_forgotten_and_what_waits_is_not() -> None:
    items = Items()
    items.create(waits("mine"), after=None)
    for number in range(MAX_ITEMS + 10):
        items.store(stored(str(number)))
    assert len(order(items)) == MAX_ITEMS
    assert items.get("0") is None
    items.store(stored("long", text="x" * MAX_CHARS))
    assert order(items) == ["long", "mine"]


def test_a_call_is_not_forgotten_before_something_came_of_it() -> None:
    items = Items()
    items.store(stored("before"))
    call = Item(item_id="call", role="assistant", text="{}", turn_id="t", call_id="call_1", name="clock")
    items.store(call)
    items.store(stored("long", text="x" * MAX_CHARS))
    assert order(items) == ["call", "long"]
    output = Item(item_id="output", role="tool", text="Noon.", turn_id="t", call_id="call_1")
    assert items.store(output) == "call"
    assert order(items) == ["long"]


def test_images_count_towards_what_is_kept() -> None:
    """Else a long list of them would be as much memory as anybody likes."""
    items = Items()
    images = (PNG.image.named(),) * 32
    for number in range(2 * MAX_CHARS // (32 * IMAGE_CHARS)):
        items.store(Item(item_id=str(number), role="user", text="", images=images))
    assert len(order(items)) == MAX_CHARS // (32 * IMAGE_CHARS)


def new_session(most: int = 2) -> RealtimeSession:
    limits = msgspec.structs.replace(LIMITS, max_images=most)
    return RealtimeSession(conversation_id="c", model="m", limits=limits)


def show(session: RealtimeSession, *parts: str) -> None:
    """An item of texts and images."""
    content = [Part("input_image", image_url=one) if ":" in one else Part(text=one) for one in parts]
    session.insert(session.new_item(NewItem(role="user", content=content)), after=None)


def response_request(session: RealtimeSession) -> Send:
    (send,) = session.ask(ResponseCreate())
    assert isinstance(send, Send)
    return send


def test_so_many_images_wait_and_no_more() -> None:
    session = new_session()
    show(session, PNG.url, JPEG.url)
    with pytest.raises(InvalidEvent, match="have 3 images; at most 2 are allowed") as refused:
        show(session, PNG.url)
    assert refused.value.code == "too_many_images"


def test_images_are_counted_before_they_are_looked_at() -> None:
    """An event may hold thousands of small ones."""
    with pytest.raises(InvalidEvent, match="has 3 images; at most 2 are allowed") as refused:
        show(new_session(), *["data:no image"] * 3)
    assert refused.value.code == "too_many_images"


def test_of_images_that_wait_again_as_many_go_as_a_message_may_show() -> None:
    session = new_session()
    show(session, PNG.url, JPEG.url)
    first = response_request(session)
    show(session, PNG.url)
    session.requeue(first.client_msg_id)
    assert response_request(session).attachments == first.attachments
