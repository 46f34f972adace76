"""The requests of one session's client: waiting items, options of replies, and the parts of the next turn. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from connections.realtime.client_events import (
    ItemCreate,
    ItemRetrieve,
    Metadata,
    NewItem,
    ResponseCreate,
    ResponseWishes,
    SessionUpdate,
    Tokens,
    TranscriptionUpdate,
)
from connections.realtime.items import Item, Items, State
from connections.realtime.parts import seen
from connections.realtime.problems import Invalid
from connections.realtime.server_events import (
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ServerEvent,
    Session,
    SessionCreated,
    SessionUpdated,
    TranscriptionSession,
    TranscriptionUpdated,
)
from connections.realtime.settings import (
    Settings,
    of_beta,
    of_response,
    of_session,
    refuse_change,
    shown_beta,
    shown_session,
    shown_transcriptions,
)
from connections.realtime.sound.wishes import SoundSettings, transcribing
from connections.wire import frames
from connections.wire.facts import Limits
from engine.images.image import Detail, Image, Seen, together
from sessions.events import Accepted
from sessions.turn.calls import RESULTS_CHARS

BETWEEN = "\n\n"
"""Separates items that became one message."""
MAX_WAITING = 100
TOLD_BYTES = 48 * 1024
"""Bytes of images that are told back to who sent them, as OpenAI does. More would wait twice for a late reader."""
Shown = tuple[tuple[int, Detail], ...]
_OUTPUT = "function_call_output"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is not accepted yet: the items that it answers, and what its client wants repeated.

    `known_by`: its `client_msg_id`, or the turn whose calls it follows. `bends`: it has instructions of its own, which the
    store takes for the conversation's. `speaks`: its reply is spoken. `shown`: where its images stand, and their details.
    """

    known_by: str
    items: tuple[str, ...]
    bends: bool
    max_output_tokens: Tokens
    metadata: Metadata | None
    speaks: bool = False
    shown: Shown = ()


class Asking:
    """A session as its client shapes it. Only one turn at a time waits to be accepted, besides spoken ones.

    `sound`: None if this server takes none. `names_model`: the client named the model, which then answers all
    of its turns.
    """

    def __init__(
        self,
        items: Items,
        *,
        conversation_id: str,
        model: str,
        limits: Limits,
        names_model: bool = False,
        sound: SoundSettings | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        self._items = items
        self._model = model
        self._named = model if names_model else None
        self._limits = limits
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self.settings = Settings(sound=sound)
        self.begun = self.settings  # the settings of this session's newest exchange
        self._asked: Asked | None = None
        self._said: dict[str, Asked] = {}  # spoken turns, by `known_by`
        self._bent = False  # the conversation has the instructions of one reply

    def created(self) -> ServerEvent:
        """Return the first event of a session."""
        return SessionCreated(session=self._session())

    def update(self, event: SessionUpdate) -> ServerEvent:
        """Change the settings of replies. Raises Invalid."""
        settings = of_session(self.settings, event.session, self._limits)
        if settings.transcribes:
            self._refuse_begun()
        self.settings = settings
        return SessionUpdated(session=self._session())

    def update_beta(self, event: TranscriptionUpdate) -> ServerEvent:
        """Change the settings of transcriptions, as the API's beta names them. Raises Invalid."""
        settings = of_beta(self.settings, event.session)
        self._refuse_begun()
        self.settings = settings
        assert settings.sound is not None  # noqa: S101 - it was changed
        return TranscriptionUpdated(session=shown_beta(settings.sound, self._session_id))

    def transcribe(self) -> None:
        """Begin as a session that only transcribes."""
        assert self.settings.sound is not None  # noqa: S101 - such a session is not admitted otherwise
        self.settings = msgspec.structs.replace(self.settings, sound=transcribing(self.settings.sound))

    def _refuse_begun(self) -> None:
        """Raise Invalid if the session has items, and so is one of replies."""
        if not self.settings.transcribes and any(self._items):
            why = "can't be changed: the session has items. Open another session for transcriptions."
            raise Invalid(why, field="session.type")

    def create(self, event: ItemCreate) -> tuple[ServerEvent, ...]:
        """Puts an item in that shows no images. Raises Invalid."""
        return self.put(self.made(event.item), behind=event.previous_item_id)

    def made(self, new: NewItem, known: Mapping[str, Image] | None = None) -> Item:
        """A new item, with the bytes of its images. `known`: those that were uploaded before, by their ids. Raises Invalid."""
        return self._outcome(new) if new.type == _OUTPUT else self._message(new, known or {})

    def put(self, item: Item, *, behind: str | None) -> tuple[ServerEvent, ...]:
        """Puts an item in whose images are kept. Raises Invalid."""
        if item.role == "user":
            self._refuse_too_much(item)
        named = item.named()
        is_long = sum(len(image.data) for image in item.images) > TOLD_BYTES
        previous, shown = self._items.create(named, behind=behind), (named if is_long else item).shown()
        return (
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        )

    def retrieve(self, event: ItemRetrieve) -> ServerEvent:
        """Return an item as it is now. Raises Invalid."""
        return ItemRetrieved(item=self.item(event.item_id, "item_retrieve_invalid_item_id").shown())

    def delete(self, item_id: str) -> ServerEvent | str:
        """Delete a waiting item, or return the turn to roll back for an item of a reply. Raises Invalid."""
        item = self.item(item_id, "item_delete_invalid_item_id")
        if item.state is State.WAITING:
            self._items.remove(item_id)
            return ItemDeleted(item_id=item_id)
        if self._asked or item.status == "in_progress":
            raise Invalid("A reply is being written.", field="item_id", code="item_delete_invalid_item_id")
        if item.role == "user":
            why = "The item was answered. Delete the reply first: the item waits again then."
            raise Invalid(why, field="item_id", code="item_delete_invalid_item_id")
        return self._items.of_exchange(item.turn_id)[-1].turn_id

    def ask(self, event: ResponseCreate) -> tuple[frames.Send | frames.ToolResult, ...]:
        """Return what begins the next reply: outputs of open calls, else all waiting messages. Raises Invalid."""
        return self._go_on(event) if self._items.open_calls() else (self._send(event),)

    def _go_on(self, event: ResponseCreate) -> tuple[frames.ToolResult, ...]:
        """Return the outputs of open calls. Raises Invalid."""
        wishes, calls = event.response or ResponseWishes(), self._items.open_calls()
        if self._asked or self._is_writing():
            self._refuse_another()
        refuse_change(self.begun, wishes, self._limits)
        outcomes = {item.call_id: item for item in self._items.waiting("tool")}
        if missing := [call.call_id for call in calls if call.call_id not in outcomes]:
            why = f'The call "{missing[0]}" has no output: create its function_call_output, or cancel the response.'
            raise Invalid(why, code="missing_function_call_output")
        self._asked = Asked(
            known_by=calls[-1].turn_id,
            items=tuple(item.item_id for item in outcomes.values()),
            bends=self._bent,
            max_output_tokens=self.begun.max_output_tokens,
            metadata=wishes.metadata,
        )
        self._items.change(self._asked.items, state=State.ASKED)
        return tuple(
            frames.ToolResult(
                ref=event.event_id,
                call_id=item.call_id,
                conversation_id=self.conversation_id,
                content=item.text,
            )
            for item in outcomes.values()
        )

    def _send(self, event: ResponseCreate) -> frames.Send:
        """Return the waiting messages as one. Raises Invalid."""
        wishes = event.response or ResponseWishes()
        settings = of_response(self.settings, wishes, self._limits)
        everything = self._items.waiting()
        if self._asked or not everything:
            self._refuse_another()
        room = self._limits.max_content_chars + len(BETWEEN)  # nothing follows the last
        waiting = self._fitting(everything, room=room) or everything[:1]
        self.begun = settings
        content, images = _together(waiting)
        asked = self._asked = Asked(
            known_by=f"realtime_{secrets.token_hex(12)}",
            items=tuple(item.item_id for item in waiting),
            bends=settings.instructions != self.settings.instructions,
            max_output_tokens=settings.max_output_tokens,
            metadata=wishes.metadata,
            speaks=settings.speaks,
            shown=_places(images),
        )
        self._items.change(asked.items, state=State.ASKED)
        return frames.Send(
            ref=event.event_id,
            client_msg_id=asked.known_by,
            conversation_id=self.conversation_id,
            content=content,
            attachments=tuple(image.digest for image in images),
            on_busy="enqueue" if settings.speaks else "reject",
            params=self._params(settings),
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def say(self, send: frames.Send, item_id: str) -> frames.Send:
        """Return spoken words as a message, after as many of the oldest waiting items as fit.

        `item_id`: of the item that it is, or will be.
        """
        settings = self.settings
        others = [one for one in self._items.waiting() if one.item_id != item_id]
        waiting = self._fitting(others, room=self._limits.max_content_chars - len(send.content))
        self.begun = settings
        content, images = _together(waiting, send.content)
        asked = self._said[send.client_msg_id] = Asked(
            known_by=send.client_msg_id,
            items=(*(item.item_id for item in waiting), item_id),
            bends=False,
            max_output_tokens=settings.max_output_tokens,
            metadata=None,
            speaks=settings.speaks,
            shown=_places(images),
        )
        self._items.change(asked.items, state=State.ASKED)
        return msgspec.structs.replace(
            send,
            ref=None,
            content=content,
            attachments=tuple(image.digest for image in images),
            params=self._params(settings),
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def make_room(self, text: str) -> list[ServerEvent]:
        """Make room for spoken words that wait: beyond the limits the oldest spoken item is dropped."""
        gone: list[ServerEvent] = []
        spoken = [item for item in self._items.waiting() if item.sound_ms is not None]
        for item in spoken:
            if self._has_room_for(text):
                break
            self._items.remove(item.item_id)
            gone.append(ItemDeleted(item_id=item.item_id))
        return gone

    def taken_in(self, accepted: Accepted) -> Asked | None:
        """Note that a turn was accepted; return the request, if it came from here."""
        if (asked := self._taken(accepted.follows or accepted.client_msg_id)) is None:
            return None
        if accepted.follows is None:
            self._items.change(
                asked.items,
                state=State.STORED,
                turn_id=accepted.turn_id,
                message_id=accepted.message_id,
            )
        self._bent = asked.bends
        return asked

    def shown_in(self, known_by: str) -> Shown:
        """Where the images of a message stand that is on its way in, and their details."""
        asked = self._said.get(known_by, self._asked)
        return asked.shown if asked is not None and asked.known_by == known_by else ()

    @property
    def most_images(self) -> int:
        """How many images may wait; 0: the model takes none."""
        return self._limits.max_images

    @property
    def on_its_way(self) -> str | None:
        """Return the `known_by` of the turn that waits to be accepted."""
        return None if self._asked is None else self._asked.known_by

    def give_back(self, known_by: str | None) -> None:
        """Note that a turn was refused: its items wait again."""
        if (asked := self._taken(known_by)) is not None:
            still = [
                one for one in asked.items if (item := self._items.get(one)) and item.state is State.ASKED
            ]
            self._items.change(still, state=State.WAITING)

    def forget(self, item: Item) -> None:
        """Forget an item that is gone, and its turn that waits to be accepted."""
        if self._asked is not None and item.item_id in self._asked.items:
            self._asked = None
        for known_by in [one for one, asked in self._said.items() if item.item_id in asked.items]:
            del self._said[known_by]

    def _taken(self, known_by: str | None) -> Asked | None:
        """Return the request of this name, and forget it."""
        if known_by in self._said:
            return self._said.pop(known_by)
        if known_by is None or known_by != self.on_its_way:
            return None
        asked, self._asked = self._asked, None
        return asked

    def _message(self, new: NewItem, known: Mapping[str, Image]) -> Item:
        """Raises Invalid."""
        text, images = seen(new, self._limits, known)
        item = Item(item_id=_id_of(new), role="user", text=text, state=State.WAITING, images=images)
        self._refuse_too_much(item)
        return item

    def _outcome(self, new: NewItem) -> Item:
        """Return the output of an open call as an item. Raises Invalid."""
        if new.call_id not in {call.call_id for call in self._items.open_calls()}:
            why = f'No call "{new.call_id}" waits for its output.'
            raise Invalid(why, field="item.call_id", code="invalid_tool_call_id")
        if self._items.outcome(new.call_id) is not None:
            why = f'The call "{new.call_id}" has an output already.'
            raise Invalid(why, field="item.call_id", code="invalid_tool_call_id")
        if new.output is None:
            raise Invalid("is missing.", field="item.output")
        chars = len(new.output) + sum(len(item.text) for item in self._items.waiting("tool"))
        if len(new.output) > self._limits.max_content_chars or chars > RESULTS_CHARS:
            why = f"may have {self._limits.max_content_chars} characters, those of a reply {RESULTS_CHARS} together."
            raise Invalid(why, field="item.output", code="content_too_long")
        return Item(
            item_id=_id_of(new), role="tool", text=new.output, state=State.WAITING, call_id=new.call_id
        )

    def _params(self, settings: Settings) -> frames.Params:
        """Return a turn's parameters. A system prompt stays with its conversation, unless it was for one reply only."""
        params = msgspec.structs.replace(settings.params(), model=self._named)
        return msgspec.structs.replace(params, system="") if self._bent and params.system is None else params

    def _refuse_too_much(self, item: Item) -> None:
        waiting, limit, most = self._items.waiting(), self._limits.max_content_chars, self._limits.max_images
        if len(waiting) >= MAX_WAITING:
            why = f"{MAX_WAITING} items wait for a reply already."
            raise Invalid(why, field="item", code="too_many_items")
        images = sum(len(one.images) for one in (item, *waiting))
        if images > most:
            why = f"The items that wait show {images} images; {most} are allowed."
            raise Invalid(why, field="item.content", code="too_many_images")
        chars = len(item.text) + sum(len(one.text) + len(BETWEEN) for one in waiting)
        if chars > limit:
            why = f"The items that wait have {chars} characters; {limit} are allowed."
            raise Invalid(why, field="item.content", code="content_too_long")

    def _has_room_for(self, text: str) -> bool:
        """Return whether another item may wait."""
        waiting = self._items.waiting()
        chars = len(text) + sum(len(item.text) + len(BETWEEN) for item in waiting)
        return len(waiting) < MAX_WAITING and chars <= self._limits.max_content_chars

    def _fitting(self, waiting: Sequence[Item], *, room: int) -> list[Item]:
        """The first of them, as many as there is room for: so many characters, with what stands behind each, and images."""
        most = self._limits.max_images
        chars = accumulate(len(item.text) + len(BETWEEN) for item in waiting)
        images = accumulate(len(item.images) for item in waiting)
        sizes = zip(waiting, chars, images, strict=True)
        return [item for item, so_far, shown in sizes if so_far <= room and shown <= most]

    def _is_writing(self) -> bool:
        return any(item.status == "in_progress" for item in self._items)

    def _refuse_another(self) -> None:
        if self._asked or self._is_writing():
            raise Invalid("A reply is being written.", code="conversation_already_has_active_response")
        raise Invalid("No item waits for a reply: create one first.", code="no_item_to_answer")

    def item(self, item_id: str, code: str) -> Item:
        """Return an item that its client knows. Raises Invalid, with the code."""
        if (item := self._items.get(item_id)) is None or not item.told:
            raise Invalid(f'There is no item "{item_id}", or it is too old.', field="item_id", code=code)
        return item

    def _session(self) -> Session | TranscriptionSession:
        if self.settings.sound is not None and self.settings.transcribes:
            return shown_transcriptions(self.settings.sound, self._session_id)
        return shown_session(
            self.settings,
            session_id=self._session_id,
            conversation_id=self.conversation_id,
            model=self._model,
        )


def _together(items: Sequence[Item], *texts: str) -> Seen:
    """What items say and show, with texts behind them, as one message."""
    seen_in = ((item.text, item.images) for item in items)
    return together([*seen_in, *((text, ()) for text in texts)], BETWEEN)


def _places(images: Sequence[Image]) -> Shown:
    return tuple((image.at, image.detail) for image in images)


def _id_of(item: NewItem) -> str:
    return item.id or f"item_{secrets.token_hex(12)}"
