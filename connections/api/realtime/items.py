"""The items of one session in order: those that wait for a reply, and the newest answered ones. Pure.

A waiting item belongs to this session only. It becomes a message with the turn that answers it; several
become one. The outcome of a call waits, too, until the session continues; it follows the calls of its reply,
whatever was sent since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import takewhile
from typing import Any, Literal

import msgspec

from connections.api.realtime import server_events
from connections.api.realtime.client_events import NewItem, Part
from connections.api.realtime.server_events import (
    Content,
    FunctionCall,
    FunctionCallOutput,
    ImageContent,
    InvalidEvent,
    ItemStatus,
    Message,
    SpokenContent,
)
from connections.api.requests import unsupported_part
from connections.images import InvalidImage, detail_of, image_from_url
from connections.protocol.base import Limits
from engine.vision.image import Image, Seen, in_order, joined
from sessions.events import ShownCall, ToolCall
from sessions.turn.prompt import NO_IMAGES

MAX_ITEMS = 1000
MAX_CHARS = 256 * 1024
"""Of the text that is kept for `conversation.item.retrieve`; the oldest items are forgotten. At most 1 MiB of memory, and
what the queue holds while a call waits: nothing is forgotten behind that.
"""
IMAGE_CHARS = 256
"""What an item knows of an image counts as so many: its bytes are in the store."""
ROOT = "root"
Role = Literal["user", "assistant", "tool"]
IMAGE_PART = "input_image"


class ItemState(Enum):
    """The state of an item."""

    WAITING = "waiting"
    PENDING = "asked"
    STORED = "stored"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a call of a reply, or a call's outcome (role `tool`). `text`: also a call's arguments.

    For a stored one, `turn_id` is its turn, `exchange` the first turn of its exchange if that is another one,
    and `message_id` the message's id at other endpoints, once known. `off`: for a call, the characters of the
    reply's text before it. `sent`: its client knows of it. `sound_ms`: how much of its sound counts; None: it
    is text. `images`: those of a user's message, with their bytes only while it is created.
    """

    item_id: str
    role: Role
    text: str
    status: ItemStatus = "completed"
    state: ItemState = ItemState.STORED
    turn_id: str = ""
    exchange: str = ""
    message_id: str = ""
    call_id: str = ""
    name: str = ""
    off: int = 0
    sent: bool = True
    sound_ms: int | None = None
    images: tuple[Image, ...] = ()

    @property
    def chars(self) -> int:
        """What it counts as where items are bounded."""
        return len(self.text) + IMAGE_CHARS * len(self.images)

    @property
    def is_call(self) -> bool:
        """Whether it is a call, not text."""
        return self.role == "assistant" and bool(self.call_id)

    def shown(self) -> server_events.Item:
        """The item for clients; without text it has no content."""
        if self.role == "tool":
            return FunctionCallOutput(
                id=self.item_id, status=self.status, call_id=self.call_id, output=self.text
            )
        if self.call_id:
            return FunctionCall(
                id=self.item_id,
                status=self.status,
                call_id=self.call_id,
                name=self.name,
                arguments="" if self.status == "in_progress" else self.text,
            )
        return Message(id=self.item_id, status=self.status, role=self.role, content=self._content())

    def named(self) -> Item:
        """The same without the bytes of its images."""
        return msgspec.structs.replace(self, images=tuple(image.named() for image in self.images))

    def _content(self) -> tuple[Content | ImageContent, ...] | tuple[SpokenContent, ...]:
        if self.status == "in_progress" and not self.text:
            return ()
        if self.images:
            return tuple(_part(part) for part in in_order(self.text, self.images))
        if self.sound_ms is None:
            return (Content("input_text" if self.role == "user" else "output_text", self.text),)
        return (SpokenContent("input_audio" if self.role == "user" else "output_audio", self.text),)


class Items:
    """An ordered list of items by id."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._order: list[str] = []
        self._chars = 0

    def __iter__(self) -> Iterator[Item]:
        return (self._items[item_id] for item_id in self._order)

    def get(self, item_id: str) -> Item | None:
        """Return an item by its id."""
        return self._items.get(item_id)

    def waiting(self, role: Role = "user") -> list[Item]:
        """Return what the next reply answers: messages, or outcomes of calls (role `tool`)."""
        return [item for item in self if item.state is ItemState.WAITING and item.role == role]

    def open_calls(self) -> list[Item]:
        """Return the calls without an outcome."""
        settled = {item.call_id for item in self if item.role == "tool" and item.state is ItemState.STORED}
        return [item for item in self if item.is_call and item.call_id not in settled]

    def outcome(self, call_id: str) -> Item | None:
        """Return the outcome of a call, waiting or stored."""
        return next((item for item in self if item.role == "tool" and item.call_id == call_id), None)

    def stored(self) -> list[Item]:
        """Return the items in the history."""
        return [item for item in self if item.state is ItemState.STORED]

    def after(self, *message_ids: str | None) -> list[Item]:
        """Return the stored items after the last item of one of these messages; None: after the root.

        An unknown message may be the reply that is being written. If there is none, all items follow it.
        """
        stored = self.stored()
        places = [place for place, item in enumerate(stored) if item.message_id in message_ids]
        if not places and None not in message_ids:
            places = [place for place, item in enumerate(stored) if not item.message_id]
        return stored[max(places, default=-1) + 1 :]

    def of_turn(self, turn_id: str) -> list[Item]:
        """Return the stored items of a turn."""
        return [item for item in self if item.state is ItemState.STORED and item.turn_id == turn_id]

    def first_turn_of(self, message_id: str | None) -> str:
        """Return the first turn of a reply's exchange; empty if the message is no reply, or unknown."""
        replies = (item for item in self if item.message_id == message_id and item.role != "user")
        return next((item.exchange or item.turn_id for item in replies), "")

    def of_reply_chain(self, turn_id: str) -> list[Item]:
        """Return the stored items of all turns in a turn's exchange."""
        first = next((item.exchange for item in self.of_turn(turn_id)), "") or turn_id
        return [item for item in self.stored() if first in (item.exchange, item.turn_id)]

    def create(self, item: Item, *, after: str | None) -> str | None:
        """Add a waiting item; return the id of the one before it. Raises InvalidEvent."""
        if item.item_id in self._items:
            why = f'There is an item "{item.item_id}" already.'
            raise InvalidEvent(why, field="item.id", code="item_create_duplicate_item_id")
        return self._put(item, self._place(item, after))

    def store(self, item: Item) -> str | None:
        """Add a stored item; return the id of the one before it.

        The outcome of a call follows the calls of its reply, a call follows its reply's items, others follow all.
        """
        if item.role == "tool":
            place = self._range_of_outcome(item.call_id)[1]
        elif item.is_call and (mine := [one.item_id for one in self.of_turn(item.turn_id)]):
            place = self._order.index(mine[-1]) + 1
        else:
            place = self._position_after(ItemState.STORED)
        previous = self._put(item, place)
        self._forget_oldest()
        return previous

    def change(self, item_ids: Iterable[str], **changed: Any) -> None:
        """Change items, if they are still there."""
        for item_id in item_ids:
            if (item := self._items.get(item_id)) is not None:
                self._items[item_id] = msgspec.structs.replace(item, **changed)

    def finish(self, item_id: str, **whole: Any) -> tuple[Item, str | None]:
        """Complete an item; return it, and the id of the item before it."""
        before = self._items[item_id]
        item = self._items[item_id] = msgspec.structs.replace(before, **whole)
        self._chars += item.chars - before.chars
        return item, self._before(self._order.index(item_id))

    def remove(self, item_id: str) -> None:
        """Remove an item."""
        self._chars -= self._items.pop(item_id).chars
        self._order.remove(item_id)

    def _put(self, item: Item, place: int) -> str | None:
        self._items[item.item_id] = item
        self._order.insert(place, item.item_id)
        self._chars += item.chars
        return self._before(place)

    def _before(self, place: int) -> str | None:
        """Return the id of the nearest item before a place that the client knows."""
        return next((one for one in reversed(self._order[:place]) if self._items[one].sent), None)

    def _place(self, item: Item, after: str | None) -> int:
        """Return the place of a new item: none goes between answered ones. Raises InvalidEvent."""
        if item.role == "tool":
            first, last = self._range_of_outcome(item.call_id)
        else:
            outcomes = [place + 1 for place, one in enumerate(self) if one.role == "tool"]
            first = max(
                self._position_after(ItemState.STORED), self._position_after(ItemState.PENDING), *outcomes
            )
            last = len(self._order)
        if after is None:
            return last
        if after != ROOT and after not in self._items:
            why = f'There is no item "{after}".'
            raise InvalidEvent(why, field="previous_item_id", code="item_create_invalid_previous_item_id")
        place = 0 if after == ROOT else self._order.index(after) + 1
        while place < last and not self._items[self._order[place]].sent:
            place += 1
        if not first <= place <= last:
            why = "Items can't be put before what is answered, nor a call's output apart from the calls of its reply."
            raise InvalidEvent(why, field="previous_item_id", code="item_create_invalid_previous_item_id")
        return place

    def _range_of_outcome(self, call_id: str) -> tuple[int, int]:
        """Return the first and the last place for an outcome, after its reply's calls and the other outcomes."""
        turn_id = next(item.turn_id for item in self if item.is_call and item.call_id == call_id)
        calls = {item.call_id for item in self.of_turn(turn_id) if item.is_call}
        of_calls = [(place, item) for place, item in enumerate(self) if item.call_id in calls]
        first = max(place for place, item in of_calls if item.is_call) + 1
        return first, max(place for place, _ in of_calls) + 1

    def _position_after(self, *states: ItemState) -> int:
        """Return the place after all items in these states."""
        trailing = takewhile(lambda item_id: self._items[item_id].state not in states, reversed(self._order))
        return len(self._order) - sum(1 for _ in trailing)

    def _forget_oldest(self) -> None:
        """Forget the oldest items, but not the newest stored one, replies being written, or waiting calls."""
        while (len(self._order) > MAX_ITEMS or self._chars > MAX_CHARS) and self._position_after(
            ItemState.STORED
        ) > 1:
            oldest = self._items[self._order[0]]
            is_active = oldest.status == "in_progress" or oldest in self.open_calls()
            if is_active or oldest.state is not ItemState.STORED:
                return
            self.remove(oldest.item_id)


def _part(part: str | Image) -> Content | ImageContent:
    if isinstance(part, str):
        return Content("input_text", part)
    url = part.url if part.data else None
    return ImageContent(image_url=url, detail=part.detail or "auto", attachment_id=part.digest)


def text_item_id(turn_id: str) -> str:
    """Of the item that the text of a turn's reply is."""
    return f"item_{turn_id.removeprefix('turn_')}"


def call_item(call: ToolCall | ShownCall, turn_id: str, *, exchange: str) -> Item:
    """A whole call as an item of its turn's reply."""
    return Item(
        item_id=f"{text_item_id(turn_id)}_{call.index}",
        role="assistant",
        text=call.args,
        turn_id=turn_id,
        exchange=exchange,
        call_id=call.call_id,
        name=call.name,
        off=call.off,
    )


def output_item(call: Item, output: str) -> Item:
    """What came of a call otherwise than by this session."""
    return Item(
        item_id=f"{call.item_id}_output",
        role="tool",
        text=output,
        turn_id=call.turn_id,
        exchange=call.exchange,
        message_id=call.message_id,
        call_id=call.call_id,
    )


def has_images(item: NewItem, *, alone: bool = False) -> bool:
    """Whether any of its parts is an image. `alone`: and none is sound."""
    parts = item.content or ()
    return any(part.type == IMAGE_PART for part in parts) and not (
        alone and any(part.audio for part in parts)
    )


def inline_image_bytes(item: NewItem) -> int:
    """The bytes of the images that an item has in it, as they were sent."""
    return sum(len(part.image_url or "") for part in item.content or ())


def uploaded_image_ids(item: NewItem) -> Iterator[str]:
    """The ids of the images in it that were uploaded before."""
    for part in item.content or ():
        if part.type == IMAGE_PART and part.attachment_id is not None and part.image_url is None:
            yield part.attachment_id


def text_and_images(item: NewItem, limits: Limits, known: Mapping[str, Image]) -> Seen:
    """A user's text, and the images in it. `known`: those that were uploaded, by their ids. Raises InvalidEvent."""
    if item.type != "message":
        raise InvalidEvent(
            "must be message or function_call_output: calls are the model's own.", field="item.type"
        )
    if item.role == "system":
        raise InvalidEvent(
            "must be user. A system message is set by session.instructions.", field="item.role"
        )
    if item.role != "user":
        raise InvalidEvent("must be user: replies are the model's own.", field="item.role")
    _refuse_too_many(item, limits)
    text, images = joined(_parsed_parts(item, limits, known))
    if not (text or images):
        raise InvalidEvent("is empty.", field="item.content")
    return text, images


def _refuse_too_many(item: NewItem, limits: Limits) -> None:
    """Raise InvalidEvent for more images than may wait, before any is looked at: an event may hold thousands."""
    images = sum(part.type == IMAGE_PART for part in item.content or ())
    if images > limits.max_images > 0:
        why = f"shows {images} images; {limits.max_images} are allowed."
        raise InvalidEvent(why, field="item.content", code="too_many_images")


def _parsed_parts(item: NewItem, limits: Limits, known: Mapping[str, Image]) -> Iterator[Seen]:
    for number, part in enumerate(item.content or ()):
        where = f"item.content[{number}]"
        match part.type:
            case "input_text" if part.text is not None:
                yield part.text, ()
            case "input_text":
                raise InvalidEvent("is missing.", field=f"{where}.text")
            case "input_image":
                yield "", (_image(part, where, limits, known),)
            case _:
                raise InvalidEvent(unsupported_part(part.type), field=f"{where}.type")


def _image(part: Part, where: str, limits: Limits, known: Mapping[str, Image]) -> Image:
    """What a model does not take is not looked at. Raises InvalidEvent."""
    if not limits.max_images:
        raise InvalidEvent(NO_IMAGES, field=f"{where}.image_url", code="unsupported_parameter")
    if part.attachment_id is not None and part.image_url is None:
        return _uploaded_image(part.attachment_id, part.detail or "", where, known)
    if part.image_url is None:
        raise InvalidEvent("is missing.", field=f"{where}.image_url")
    try:
        return image_from_url(part.image_url, part.detail or "")
    except InvalidImage as why:
        raise InvalidEvent(str(why), field=f"{where}.image_url", code="invalid_image") from None


def _uploaded_image(digest: str, detail: str, where: str, known: Mapping[str, Image]) -> Image:
    if (image := known.get(digest)) is None:
        why = "names no image that was uploaded, or it has expired."
        raise InvalidEvent(why, field=f"{where}.attachment_id", code="not_found")
    try:
        return msgspec.structs.replace(image, at=0, detail=detail_of(detail))
    except InvalidImage as why:
        raise InvalidEvent(str(why), field=f"{where}.detail", code="invalid_image") from None
