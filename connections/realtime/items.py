"""The items of one session in their order: those that wait for a reply, and the newest of those that have one. Pure.

A waiting item is this session's alone. It becomes a message with the turn that answers it: several that wait become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import takewhile
from typing import Any, Literal

import msgspec

from connections.realtime import server_events
from connections.realtime.problems import Invalid
from connections.realtime.server_events import Content, ItemStatus

MAX_ITEMS = 1000
MAX_CHARS = 256 * 1024
"""Of the text that is kept for `conversation.item.retrieve`; the oldest items are forgotten. At most 1 MiB of memory."""
ROOT = "root"

Role = Literal["user", "assistant"]


class State(Enum):
    """How far an item came."""

    WAITING = "waiting"
    ASKED = "asked"
    STORED = "stored"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message. Of a stored one `turn_id` is the turn that it belongs to, and `message_id` its name on other doors, once known."""

    item_id: str
    role: Role
    text: str
    status: ItemStatus = "completed"
    state: State = State.STORED
    turn_id: str = ""
    message_id: str = ""

    def shown(self) -> server_events.Item:
        """The item as clients see it; one that has no text yet has no content."""
        kind: Literal["input_text", "output_text"] = "input_text" if self.role == "user" else "output_text"
        content = (Content(kind, self.text),) if self.text or self.status != "in_progress" else ()
        return server_events.Item(id=self.item_id, status=self.status, role=self.role, content=content)


class Items:
    """An ordered list. Ids are the keys."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._order: list[str] = []
        self._chars = 0

    def __iter__(self) -> Iterator[Item]:
        return (self._items[item_id] for item_id in self._order)

    def get(self, item_id: str) -> Item | None:
        """An item by its id."""
        return self._items.get(item_id)

    def waiting(self) -> list[Item]:
        """What the next reply answers."""
        return [item for item in self if item.state is State.WAITING]

    def stored(self) -> list[Item]:
        """What is in the history."""
        return [item for item in self if item.state is State.STORED]

    def behind(self, *message_ids: str | None) -> list[Item]:
        """The stored items behind the last one that is one of these messages; None: behind the root.

        A reply that is being written may be any message that is not known. Without one, all items are behind that.
        """
        stored = self.stored()
        places = [place for place, item in enumerate(stored) if item.message_id in message_ids]
        if not places and None not in message_ids:
            places = [place for place, item in enumerate(stored) if not item.message_id]
        return stored[max(places, default=-1) + 1 :]

    def of_turn(self, turn_id: str) -> list[Item]:
        """The stored items of a turn."""
        return [item for item in self if item.state is State.STORED and item.turn_id == turn_id]

    def create(self, item: Item, *, behind: str | None) -> str | None:
        """Puts a waiting item in; gives the id of the one before it. Raises Invalid."""
        if item.item_id in self._items:
            why = f'There is an item "{item.item_id}" already.'
            raise Invalid(why, field="item.id", code="item_create_duplicate_item_id")
        return self._put(item, self._place(behind))

    def store(self, item: Item) -> str | None:
        """Puts a stored item in, behind all that are stored; gives the id of the one before it."""
        previous = self._put(item, self._behind(State.STORED))
        self._forget_oldest()
        return previous

    def change(
        self, item_ids: Iterable[str], *, state: State, turn_id: str = "", message_id: str = ""
    ) -> None:
        """What happened to items; to those that are still there."""
        for item_id in item_ids:
            if (item := self._items.get(item_id)) is not None:
                self._items[item_id] = msgspec.structs.replace(
                    item, state=state, turn_id=turn_id, message_id=message_id
                )

    def finish(self, item_id: str, **whole: Any) -> tuple[Item, str | None]:
        """A reply is whole; gives it, and the id of the item before it."""
        item = msgspec.structs.replace(self._items[item_id], **whole)
        self._items[item_id] = item
        self._chars += len(item.text)
        place = self._order.index(item_id)
        return item, self._order[place - 1] if place else None

    def remove(self, item_id: str) -> None:
        """Takes an item out."""
        self._chars -= len(self._items.pop(item_id).text)
        self._order.remove(item_id)

    def _put(self, item: Item, place: int) -> str | None:
        self._items[item.item_id] = item
        self._order.insert(place, item.item_id)
        self._chars += len(item.text)
        return self._order[place - 1] if place else None

    def _place(self, behind: str | None) -> int:
        """Where a new item goes: nothing comes between what was answered. Raises Invalid."""
        if behind is None:
            return len(self._order)
        if behind != ROOT and behind not in self._items:
            why = f'There is no item "{behind}".'
            raise Invalid(why, field="previous_item_id", code="item_create_invalid_previous_item_id")
        place = 0 if behind == ROOT else self._order.index(behind) + 1
        if place < self._behind(State.STORED, State.ASKED):
            why = "Items can't be put before what is answered."
            raise Invalid(why, field="previous_item_id", code="item_create_invalid_previous_item_id")
        return place

    def _behind(self, *states: State) -> int:
        """The place behind all items that came so far."""
        coming = takewhile(lambda item_id: self._items[item_id].state not in states, reversed(self._order))
        return len(self._order) - sum(1 for _ in coming)

    def _forget_oldest(self) -> None:
        """The newest one that is stored stays, however long it is, and so does a reply that is being written."""
        while (len(self._order) > MAX_ITEMS or self._chars > MAX_CHARS) and self._behind(State.STORED) > 1:
            oldest = self._items[self._order[0]]
            if oldest.state is not State.STORED or oldest.status == "in_progress":
                return
            self.remove(oldest.item_id)
