"""One Realtime session: its items in order, and the next turn.

A waiting item belongs to this session only. It becomes a message with the turn that answers it; several
become one. The outcome of a call waits, too, until the session continues; it follows the calls of its reply,
whatever was sent since.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from itertools import accumulate, takewhile
from typing import Any, Literal

import msgspec

from connections.api.realtime.events import (
    Event,
    InvalidEvent,
    ItemCreate,
    ItemRetrieve,
    ItemStatus,
    Metadata,
    NewItem,
    Part,
    ResponseCreate,
    ResponseOptions,
    SessionUpdate,
    TokenLimit,
    complete_item,
    event,
)
from connections.api.realtime.settings import (
    AudioConfig,
    Settings,
    reject_changes,
    with_response_options,
    with_session_options,
)
from connections.api.requests import unsupported_part
from connections.images import InvalidImage, image_from_url
from connections.protocol import frames
from connections.protocol.base import Limits
from engine.vision.image import Detail, Image, Seen, in_order, joined, together
from sessions.events import Accepted, ShownCall, ToolCall
from sessions.turn.prompt import NO_IMAGES
from sessions.turn.tool_calls import RESULTS_CHARS

SEPARATOR = "\n\n"
"""Separates items that became one message."""
MAX_WAITING = 100
MAX_ECHO_BYTES = 48 * 1024
"""Bytes of images that are sent back to their sender, as OpenAI does. More would be queued twice, in two events."""
ImagePositions = tuple[tuple[int, Detail], ...]
_TOOL_OUTPUT = "function_call_output"
MAX_ITEMS = 1000
MAX_CHARS = 256 * 1024
"""Characters kept for `conversation.item.retrieve`; the oldest items are forgotten. At most 1 MiB of memory, and what is queued
while a call waits: nothing after a waiting call is forgotten.
"""
IMAGE_CHARS = 256
"""An image in an item counts as this many characters: its bytes are in the store."""
ROOT = "root"
Role = Literal["user", "assistant", "tool"]
IMAGE_PART = "input_image"


class PendingTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is not accepted yet: the items that it answers, and what its client wants repeated.

    Its `request_id` is its `client_msg_id`, or the turn whose calls it follows. `overrides_instructions`: it has instructions of its own, which the
    store takes for the conversation's. `speaks`: its reply is spoken. `shown`: where its images stand, and their details.
    """

    items: tuple[str, ...] = ()
    overrides_instructions: bool = False
    max_output_tokens: TokenLimit = "inf"
    metadata: Metadata | None = None
    speaks: bool = False
    shown: ImagePositions = ()


class RealtimeSession:
    """A session as its client shapes it. Only one turn at a time waits to be accepted, besides spoken ones.

    `sound`: None if this server takes none. `names_model`: the client named the model, which then answers all
    of its turns.
    """

    def __init__(
        self,
        *,
        conversation_id: str,
        model: str,
        limits: Limits,
        names_model: bool = False,
        sound: AudioConfig | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        self.items = Items()
        self._model = model
        self._requested_model = model if names_model else None
        # Items that wait for a reply are kept here, and become one message.
        chars = min(limits.max_content_chars, MAX_CHARS)
        self._limits = msgspec.structs.replace(limits, max_content_chars=chars)
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self.settings = Settings(sound=sound)
        self.begun = self.settings  # the settings of this session's newest exchange
        self.asked: str | None = None  # the `request_id` of the pending turn that is not spoken
        self._pending: dict[str, PendingTurn] = {}  # by `request_id`
        self._overrides_instructions = False  # the conversation has the instructions of one reply

    def shown(self) -> dict[str, Any]:
        """Return the session as its client sees it."""
        return self.settings.shown(self._session_id, self.conversation_id, self._model)

    def update(self, request: SessionUpdate) -> Event:
        """Change the settings. Raises InvalidEvent."""
        settings = with_session_options(self.settings, request.session, self._limits)
        if settings.transcribes and not self.settings.transcribes and any(self.items):
            why = "can't be changed: the session has items. Open another session for transcriptions."
            raise InvalidEvent(why, field="session.type")
        self.settings = settings
        return event("session.updated", session=self.shown())

    def create(self, request: ItemCreate) -> tuple[Event, ...]:
        """Insert an item without images. Raises InvalidEvent."""
        return self.insert(self.new_item(request.item), after=request.previous_item_id)

    def new_item(self, new: NewItem) -> Item:
        """Return a new item, with its images' bytes. Raises InvalidEvent."""
        if new.type == _TOOL_OUTPUT:
            return self._output_item(new)
        text, images = text_and_images(new, self._limits)
        item = Item(
            item_id=new.id or new_item_id(), role="user", text=text, state=ItemState.WAITING, images=images
        )
        self._check_waiting_limits(item)
        return item

    def insert(self, item: Item, *, after: str | None) -> tuple[Event, ...]:
        """Insert an item with stored images. Raises InvalidEvent."""
        if item.role == "user":
            self._check_waiting_limits(item)
        named = item.named()
        is_long = sum(len(image.data) for image in item.images) > MAX_ECHO_BYTES
        return complete_item(self.items.create(named, after=after), (named if is_long else item).shown())

    def retrieve(self, request: ItemRetrieve) -> Event:
        """Return an item as it is now. Raises InvalidEvent."""
        item = self.item(request.item_id, "item_retrieve_invalid_item_id")
        return event("conversation.item.retrieved", item=item.shown())

    def delete(self, item_id: str) -> Event | str:
        """Delete a waiting item; for an item of a reply, return the turn to roll back. Raises InvalidEvent."""
        item = self.item(item_id, "item_delete_invalid_item_id")
        if item.state is ItemState.WAITING:
            self.items.remove(item_id)
            return event("conversation.item.deleted", item_id=item_id)
        if self.asked or item.status == "in_progress":
            raise InvalidEvent(
                "A reply is being written.", field="item_id", code="item_delete_invalid_item_id"
            )
        if item.role == "user":
            why = "The item was answered. Delete the reply first."
            raise InvalidEvent(why, field="item_id", code="item_delete_invalid_item_id")
        return self.items.of_reply_chain(item.turn_id)[-1].turn_id

    def ask(self, request: ResponseCreate) -> tuple[frames.Send | frames.ToolResult, ...]:
        """Return what begins the next reply: outputs of open calls, else all waiting messages. Raises InvalidEvent."""
        return self._submit_tool_outputs(request) if self.items.open_calls() else (self._send(request),)

    def _submit_tool_outputs(self, request: ResponseCreate) -> tuple[frames.ToolResult, ...]:
        """Return the outputs of open calls. Raises InvalidEvent."""
        options, calls = request.response or ResponseOptions(), self.items.open_calls()
        self._refuse_while_writing()
        reject_changes(self.begun, options, self._limits)
        outcomes = {item.call_id: item for item in self.items.waiting("tool")}
        if missing := [call.call_id for call in calls if call.call_id not in outcomes]:
            why = f'The call "{missing[0]}" has no output: create its function_call_output, or cancel the response.'
            raise InvalidEvent(why, code="missing_function_call_output")
        self.asked = calls[-1].turn_id
        pending = self._pending[self.asked] = PendingTurn(
            items=tuple(item.item_id for item in outcomes.values()),
            overrides_instructions=self._overrides_instructions,
            max_output_tokens=self.begun.max_output_tokens,
            metadata=options.metadata,
        )
        self.items.change(pending.items, state=ItemState.PENDING)
        return tuple(
            frames.ToolResult(
                ref=request.ref,
                call_id=item.call_id,
                conversation_id=self.conversation_id,
                content=item.text,
            )
            for item in outcomes.values()
        )

    def _send(self, request: ResponseCreate) -> frames.Send:
        """Return the waiting messages as one. Raises InvalidEvent."""
        options = request.response or ResponseOptions()
        settings = with_response_options(self.settings, options, self._limits)
        everything = self.items.waiting()
        if self.asked or not everything:
            self._refuse_while_writing()
            raise InvalidEvent("No item is waiting for a reply: create one first.", code="no_item_to_answer")
        max_chars = self._limits.max_content_chars + len(SEPARATOR)  # no separator follows the last
        waiting = self._fitting_items(everything, max_chars=max_chars) or everything[:1]
        send = frames.Send(
            ref=request.ref,
            client_msg_id=f"realtime_{secrets.token_hex(12)}",
            conversation_id=self.conversation_id,
            content="",
            on_busy="enqueue" if settings.speaks else "reject",
        )
        overrides = settings.instructions != self.settings.instructions
        self.asked = send.client_msg_id
        return self._after_items(
            send, waiting, settings, overrides_instructions=overrides, metadata=options.metadata
        )

    def speech_message(self, send: frames.Send, item_id: str) -> frames.Send:
        """Return spoken words as a message, after as many of the oldest waiting items as fit.

        `item_id`: of the words' item, new or not.
        """
        others = [one for one in self.items.waiting() if one.item_id != item_id]
        waiting = self._fitting_items(others, max_chars=self._limits.max_content_chars - len(send.content))
        send = msgspec.structs.replace(send, ref=None)
        return self._after_items(send, waiting, self.settings, own=(item_id,))

    def _after_items(
        self,
        send: frames.Send,
        waiting: Sequence[Item],
        settings: Settings,
        *,
        overrides_instructions: bool = False,
        metadata: Metadata | None = None,
        own: tuple[str, ...] = (),
    ) -> frames.Send:
        """Return `send` with what the items say before its own content; its turn is pending from now on."""
        self.begun = settings
        params = msgspec.structs.replace(settings.params(), model=self._requested_model)
        # A system prompt stays with its conversation, unless it was for one reply only.
        if self._overrides_instructions and params.system is None:
            params = msgspec.structs.replace(params, system="")
        contents = [(item.text, item.images) for item in waiting]
        content, images = together([*contents, (send.content, ())] if send.content else contents, SEPARATOR)
        pending = self._pending[send.client_msg_id] = PendingTurn(
            items=(*(item.item_id for item in waiting), *own),
            overrides_instructions=overrides_instructions,
            max_output_tokens=settings.max_output_tokens,
            metadata=metadata,
            speaks=settings.speaks,
            shown=tuple((image.at, image.detail) for image in images),
        )
        self.items.change(pending.items, state=ItemState.PENDING)
        return msgspec.structs.replace(
            send,
            content=content,
            attachments=tuple(image.digest for image in images),
            params=params,
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def evict_for(self, text: str) -> list[Event]:
        """Make room for spoken words that wait: beyond limits the oldest spoken items are dropped."""
        gone: list[Event] = []
        waiting = self.items.waiting()
        chars = len(text) + sum(len(item.text) + len(SEPARATOR) for item in waiting)
        for item in [one for one in waiting if one.sound_ms is not None]:
            if len(waiting) - len(gone) < MAX_WAITING and chars <= self._limits.max_content_chars:
                break
            self.items.remove(item.item_id)
            chars -= len(item.text) + len(SEPARATOR)
            gone.append(event("conversation.item.deleted", item_id=item.item_id))
        return gone

    def accept(self, accepted: Accepted) -> PendingTurn | None:
        """Note an accepted turn; return it, if this session requested it."""
        if (pending := self._pop_pending(accepted.follows or accepted.client_msg_id)) is None:
            return None
        if accepted.follows is None:
            self.items.change(
                pending.items,
                state=ItemState.STORED,
                turn_id=accepted.turn_id,
                message_id=accepted.message_id,
            )
        self._overrides_instructions = pending.overrides_instructions
        return pending

    def image_positions(self, request_id: str) -> ImagePositions:
        """Return the positions of a pending message's images, and their details."""
        pending = self._pending.get(request_id)
        return () if pending is None else pending.shown

    def requeue(self, request_id: str | None) -> None:
        """Note that a turn was refused: its items wait again."""
        if (pending := self._pop_pending(request_id)) is not None:
            still = [one for one in self.items if one.state is ItemState.PENDING]
            mine = [one.item_id for one in still if one.item_id in pending.items]
            self.items.change(mine, state=ItemState.WAITING)

    def forget(self, item: Item) -> None:
        """Forget an item that is gone, and any pending turn with it."""
        for request_id in [one for one, turn in self._pending.items() if item.item_id in turn.items]:
            self._pop_pending(request_id)

    def _pop_pending(self, request_id: str | None) -> PendingTurn | None:
        """Remove and return a pending turn."""
        if request_id == self.asked:
            self.asked = None
        return None if request_id is None else self._pending.pop(request_id, None)

    def _output_item(self, new: NewItem) -> Item:
        """Return the output of an open call as an item. Raises InvalidEvent."""
        if new.call_id not in {call.call_id for call in self.items.open_calls()}:
            why = f'The call "{new.call_id}" is not waiting for an output.' if new.call_id else "is missing."
            raise InvalidEvent(why, field="item.call_id", code="invalid_tool_call_id")
        if self.items.outcome(new.call_id) is not None:
            why = f'The call "{new.call_id}" already has an output.'
            raise InvalidEvent(why, field="item.call_id", code="invalid_tool_call_id")
        if new.output is None:
            raise InvalidEvent("is missing.", field="item.output")
        chars = len(new.output) + sum(len(item.text) for item in self.items.waiting("tool"))
        if len(new.output) > self._limits.max_content_chars or chars > RESULTS_CHARS:
            why = f"may have at most {self._limits.max_content_chars} characters, and {RESULTS_CHARS} for all calls of a reply."
            raise InvalidEvent(why, field="item.output", code="content_too_long")
        return Item(
            item_id=new.id or new_item_id(),
            role="tool",
            text=new.output,
            state=ItemState.WAITING,
            call_id=new.call_id,
        )

    def _check_waiting_limits(self, item: Item) -> None:
        waiting, limit, most = self.items.waiting(), self._limits.max_content_chars, self._limits.max_images
        if len(waiting) >= MAX_WAITING:
            why = f"{MAX_WAITING} items are already waiting for a reply."
            raise InvalidEvent(why, field="item", code="too_many_items")
        images = sum(len(one.images) for one in (item, *waiting))
        if images > most:
            why = f"The waiting items have {images} images; at most {most} are allowed."
            raise InvalidEvent(why, field="item.content", code="too_many_images")
        chars = len(item.text) + sum(len(one.text) + len(SEPARATOR) for one in waiting)
        if chars > limit:
            why = f"The waiting items have {chars} characters; at most {limit} are allowed."
            raise InvalidEvent(why, field="item.content", code="content_too_long")

    def _fitting_items(self, waiting: Sequence[Item], *, max_chars: int) -> list[Item]:
        """Return the first waiting items that fit: `max_chars`, separators included, and the images of one message."""
        most = self._limits.max_images
        chars = accumulate(len(item.text) + len(SEPARATOR) for item in waiting)
        images = accumulate(len(item.images) for item in waiting)
        sizes = zip(waiting, chars, images, strict=True)
        return [item for item, so_far, shown in sizes if so_far <= max_chars and shown <= most]

    def _refuse_while_writing(self) -> None:
        if self.asked or any(item.status == "in_progress" for item in self.items):
            raise InvalidEvent("A reply is being written.", code="conversation_already_has_active_response")

    def item(self, item_id: str, code: str) -> Item:
        """Return an item that the client knows. Raises InvalidEvent, with `code`."""
        if (item := self.items.get(item_id)) is None or not item.sent:
            raise InvalidEvent(
                f'Item not found: "{item_id}". It never existed, or is too old.', field="item_id", code=code
            )
        return item


def new_item_id() -> str:
    """Return a new id of an item."""
    return f"item_{secrets.token_hex(12)}"


class ItemState(Enum):
    """The state of an item."""

    WAITING = "waiting"
    PENDING = "asked"
    STORED = "stored"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a call of a reply, or a call's outcome (role `tool`). `text`: also a call's arguments.

    For a stored item, `turn_id` is its turn, `exchange` the first turn of its exchange if that is another one,
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
        """Its size in characters, for limits."""
        return len(self.text) + IMAGE_CHARS * len(self.images)

    @property
    def is_call(self) -> bool:
        """Whether it is a call, not text."""
        return self.role == "assistant" and bool(self.call_id)

    def shown(self) -> dict[str, Any]:
        """The item for clients; without text it has no content."""
        kind = (
            "function_call_output" if self.role == "tool" else "function_call" if self.call_id else "message"
        )
        shown = {"id": self.item_id, "object": "realtime.item", "type": kind, "status": self.status}
        if self.role == "tool":
            return {**shown, "call_id": self.call_id, "output": self.text}
        if self.call_id:
            arguments = "" if self.status == "in_progress" else self.text
            return {**shown, "call_id": self.call_id, "name": self.name, "arguments": arguments}
        return {**shown, "role": self.role, "content": self._content()}

    def named(self) -> Item:
        """The item without its images' bytes."""
        return msgspec.structs.replace(self, images=tuple(image.named() for image in self.images))

    def _content(self) -> list[dict[str, Any]]:
        direction = "input" if self.role == "user" else "output"
        if self.status == "in_progress" and not self.text:
            return []
        if self.images:
            return [_part(part) for part in in_order(self.text, self.images)]
        if self.sound_ms is not None:
            return [{"type": f"{direction}_audio", "transcript": self.text}]
        return [{"type": f"{direction}_text", "text": self.text}]


class Items:
    """The items in order: those that wait for a reply, and the newest answered ones."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._chars = 0

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def get(self, item_id: str) -> Item | None:
        """Return an item by its id."""
        return next((item for item in self if item.item_id == item_id), None)

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

        An unknown message may be the reply that is being written. Without such a reply, all follow.
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
        if self.get(item.item_id) is not None:
            why = f'The item ID "{item.item_id}" is already in use.'
            raise InvalidEvent(why, field="item.id", code="item_create_duplicate_item_id")
        return self._put(item, self._place(item, after))

    def store(self, item: Item) -> str | None:
        """Add a stored item; return the id of the one before it.

        The outcome of a call follows the calls of its reply, a call follows its reply's items, others follow all.
        """
        if item.role == "tool":
            first, last = self._range_of_outcome(
                item.call_id
            )  # between those that wait, others' messages may stand
            place = first + sum(
                one.state is ItemState.STORED and one.role == "tool" for one in self._items[first:last]
            )
        elif item.is_call and (mine := self.of_turn(item.turn_id)):
            place = self._items.index(mine[-1]) + 1
        else:
            place = self._position_after(ItemState.STORED)
        previous = self._put(item, place)
        self._forget_oldest()
        return previous

    def change(self, item_ids: Collection[str], **changed: Any) -> None:
        """Change items, if they are still there."""
        for place, item in enumerate(self._items):
            if item.item_id in item_ids:
                self._items[place] = msgspec.structs.replace(item, **changed)

    def finish(self, item_id: str, **whole: Any) -> tuple[Item, str | None]:
        """Complete an item; return it, and the id of the item before it."""
        place = self._index(item_id)
        before = self._items[place]
        item = self._items[place] = msgspec.structs.replace(before, **whole)
        self._chars += item.chars - before.chars
        return item, self._before(place)

    def remove(self, item_id: str) -> None:
        """Remove an item."""
        self._chars -= self._items.pop(self._index(item_id)).chars

    def _index(self, item_id: str) -> int:
        return next(place for place, item in enumerate(self._items) if item.item_id == item_id)

    def _put(self, item: Item, place: int) -> str | None:
        self._items.insert(place, item)
        self._chars += item.chars
        return self._before(place)

    def _before(self, place: int) -> str | None:
        """Return the id of the nearest sent item before a place."""
        return next((item.item_id for item in reversed(self._items[:place]) if item.sent), None)

    def _place(self, item: Item, after: str | None) -> int:
        """Return the place of a new item: none goes between answered ones. Raises InvalidEvent."""
        if item.role == "tool":
            first, last = self._range_of_outcome(item.call_id)
        else:
            outcomes = [place + 1 for place, one in enumerate(self) if one.role == "tool"]
            first = max([self._position_after(ItemState.STORED, ItemState.PENDING), *outcomes])
            last = len(self._items)
        if after is None:
            return last
        if after != ROOT and self.get(after) is None:
            why = f'Item not found: "{after}".'
            raise InvalidEvent(why, field="previous_item_id", code="item_create_invalid_previous_item_id")
        place = 0 if after == ROOT else self._index(after) + 1
        while place < last and not self._items[place].sent:
            place += 1
        if not first <= place <= last:
            why = "Items can't be inserted before answered items, and a call's output must stay with the calls of its reply."
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
        trailing = takewhile(lambda item: item.state not in states, reversed(self._items))
        return len(self._items) - sum(1 for _ in trailing)

    def _forget_oldest(self) -> None:
        """Forget the oldest items, but not the newest stored one, replies being written, or waiting calls."""
        while (len(self._items) > MAX_ITEMS or self._chars > MAX_CHARS) and self._position_after(
            ItemState.STORED
        ) > 1:
            oldest = self._items[0]
            is_active = oldest.status == "in_progress" or oldest in self.open_calls()
            if is_active or oldest.state is not ItemState.STORED:
                return
            self.remove(oldest.item_id)


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {
        "type": IMAGE_PART,
        "image_url": part.url if part.data else None,  # None once it is stored
        "detail": part.detail or "auto",
        "attachment_id": part.digest,  # ours: its id wherever attachments are read
    }


def text_item_id(turn_id: str) -> str:
    """Return the id of the item of a reply's text."""
    return f"item_{turn_id.removeprefix('turn_')}"


def call_item(call: ToolCall | ShownCall, turn_id: str, *, exchange: str) -> Item:
    """A call as an item of its turn's reply."""
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
    """Return the item of a call's outcome from elsewhere."""
    return msgspec.structs.replace(
        call, item_id=f"{call.item_id}_output", role="tool", text=output, name="", off=0
    )


def has_images(item: NewItem) -> bool:
    """Whether a part is an image."""
    return any(part.type == IMAGE_PART for part in item.content or ())


def image_bytes(item: NewItem) -> int:
    """Return the size of an item's images, as they were sent."""
    return sum(len(part.image_url or "") for part in item.content or ())


def text_and_images(item: NewItem, limits: Limits) -> Seen:
    """Return a user's text and images. Raises InvalidEvent."""
    if item.type != "message":
        raise InvalidEvent(
            "must be message or function_call_output: only the model creates calls.", field="item.type"
        )
    if item.role == "system":
        raise InvalidEvent("must be user. Use session.instructions for system text.", field="item.role")
    if item.role != "user":
        raise InvalidEvent("must be user: only the model creates replies.", field="item.role")
    count = sum(part.type == IMAGE_PART for part in item.content or ())
    if count > limits.max_images > 0:  # before any is looked at: an event may hold thousands
        why = f"has {count} images; at most {limits.max_images} are allowed."
        raise InvalidEvent(why, field="item.content", code="too_many_images")
    text, images = joined(_parsed_parts(item, limits))
    if not (text or images):
        raise InvalidEvent("is empty.", field="item.content")
    return text, images


def _parsed_parts(item: NewItem, limits: Limits) -> Iterator[Seen]:
    for number, part in enumerate(item.content or ()):
        where = f"item.content[{number}]"
        match part.type:
            case "input_text" if part.text is not None:
                yield part.text, ()
            case "input_text":
                raise InvalidEvent("is missing.", field=f"{where}.text")
            case "input_image":
                yield "", (_image(part, where, limits),)
            case "input_audio":
                why = "Items of sound are not supported: use input_audio_buffer.append and .commit."
                raise InvalidEvent(why, field=f"{where}.type")
            case _:
                raise InvalidEvent(unsupported_part(part.type), field=f"{where}.type")


def _image(part: Part, where: str, limits: Limits) -> Image:
    """Read an image, unless the model takes none. Raises InvalidEvent."""
    field = f"{where}.image_url"
    if not limits.max_images:
        raise InvalidEvent(NO_IMAGES, field=field, code="unsupported_parameter")
    if part.image_url is None:
        raise InvalidEvent("is missing.", field=field)
    try:
        return image_from_url(part.image_url, part.detail or "")
    except InvalidImage as invalid:
        raise InvalidEvent(str(invalid), field=field, code="invalid_image") from None
