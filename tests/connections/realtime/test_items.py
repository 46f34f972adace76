"""Items keep their order: what was answered first, then what waits."""

from __future__ import annotations

import pytest

from connections.api.realtime.events import InvalidEvent
from connections.api.realtime.session import IMAGE_CHARS, MAX_CHARS, MAX_ITEMS, Item, Items, ItemState
from tests.sample_images import PNG


def waits(item_id: str) -> Item:
    return Item(item_id=item_id, role="user", text=item_id, state=ItemState.WAITING)


def stored(item_id: str, **more: str) -> Item:
    return Item(item_id=item_id, role="assistant", text=more.get("text", item_id), turn_id="t")


def order(items: Items) -> list[str]:
    return [item.item_id for item in items]


def test_an_item_goes_where_its_client_puts_it() -> None:
    items = Items()
    items.create(waits("a"), after=None)
    assert items.create(waits("b"), after=None) == "a"
    assert items.create(waits("c"), after="a") == "a"
    assert items.create(waits("d"), after="root") is None
    assert order(items) == ["d", "a", "c", "b"]


def test_nothing_comes_before_what_was_answered() -> None:
    items = Items()
    items.store(stored("a"))
    items.store(stored("b"))
    items.create(waits("c"), after="b")
    for place in ("root", "a"):
        with pytest.raises(InvalidEvent, match=r"^`previous_item_id`: ") as refused:
            items.create(waits("d"), after=place)
        assert refused.value.code == "item_create_invalid_previous_item_id"
    assert order(items) == ["a", "b", "c"]


def test_ids_are_given_once() -> None:
    items = Items()
    items.create(waits("a"), after=None)
    with pytest.raises(InvalidEvent, match=r"^`item\.id`: ") as refused:
        items.create(waits("a"), after=None)
    assert refused.value.code == "item_create_duplicate_item_id"
    items.remove("a")
    items.create(waits("a"), after=None)


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
