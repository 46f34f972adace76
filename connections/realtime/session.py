"""The requests of one session's client: waiting items, options of replies, and the parts of the next turn. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from connections.protocol import frames
from connections.protocol.server_info import Limits
from connections.realtime.audio.audio_config import AudioConfig, transcription_only
from connections.realtime.client_events import (
    ItemCreate,
    ItemRetrieve,
    Metadata,
    NewItem,
    ResponseCreate,
    ResponseOptions,
    SessionUpdate,
    TokenLimit,
    TranscriptionUpdate,
)
from connections.realtime.content_parts import text_and_images
from connections.realtime.items import Item, Items, ItemState
from connections.realtime.problems import InvalidEvent
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
    beta_transcription_view,
    reject_changes,
    session_view,
    transcription_view,
    with_beta_options,
    with_response_options,
    with_session_options,
)
from engine.vision.image import Detail, Image, Seen, together
from sessions.events import Accepted
from sessions.turn.tool_calls import RESULTS_CHARS

SEPARATOR = "\n\n"
"""Separates items that became one message."""
MAX_WAITING = 100
MAX_ECHO_BYTES = 48 * 1024
"""Bytes of images that are told back to who sent them, as OpenAI does. More would wait twice for a late reader."""
ImagePositions = tuple[tuple[int, Detail], ...]
_TOOL_OUTPUT = "function_call_output"


class PendingTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is not accepted yet: the items that it answers, and what its client wants repeated.

    `request_id`: its `client_msg_id`, or the turn whose calls it follows. `overrides_instructions`: it has instructions of its own, which the
    store takes for the conversation's. `speaks`: its reply is spoken. `shown`: where its images stand, and their details.
    """

    request_id: str
    items: tuple[str, ...]
    overrides_instructions: bool
    max_output_tokens: TokenLimit
    metadata: Metadata | None
    speaks: bool = False
    shown: ImagePositions = ()


class RealtimeSession:
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
        sound: AudioConfig | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        self._items = items
        self._model = model
        self._requested_model = model if names_model else None
        self._limits = limits
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self.settings = Settings(sound=sound)
        self.begun = self.settings  # the settings of this session's newest exchange
        self._pending: PendingTurn | None = None
        self._pending_speech: dict[str, PendingTurn] = {}  # spoken turns, by `request_id`
        self._overrides_instructions = False  # the conversation has the instructions of one reply

    def created(self) -> ServerEvent:
        """Return the first event of a session."""
        return SessionCreated(session=self._session())

    def update(self, event: SessionUpdate) -> ServerEvent:
        """Change the settings of replies. Raises InvalidEvent."""
        settings = with_session_options(self.settings, event.session, self._limits)
        if settings.transcribes:
            self._refuse_with_items()
        self.settings = settings
        return SessionUpdated(session=self._session())

    def update_beta(self, event: TranscriptionUpdate) -> ServerEvent:
        """Change the settings of transcriptions, as the API's beta names them. Raises InvalidEvent."""
        settings = with_beta_options(self.settings, event.session)
        self._refuse_with_items()
        self.settings = settings
        assert settings.sound is not None  # noqa: S101 - it was changed
        return TranscriptionUpdated(session=beta_transcription_view(settings.sound, self._session_id))

    def transcribe(self) -> None:
        """Begin as a session that only transcribes."""
        assert self.settings.sound is not None  # noqa: S101 - such a session is not admitted otherwise
        self.settings = msgspec.structs.replace(self.settings, sound=transcription_only(self.settings.sound))

    def _refuse_with_items(self) -> None:
        """Raise InvalidEvent if the session has items, and so is one of replies."""
        if not self.settings.transcribes and any(self._items):
            why = "can't be changed: the session has items. Open another session for transcriptions."
            raise InvalidEvent(why, field="session.type")

    def create(self, event: ItemCreate) -> tuple[ServerEvent, ...]:
        """Puts an item in that shows no images. Raises InvalidEvent."""
        return self.insert(self.new_item(event.item), after=event.previous_item_id)

    def new_item(self, new: NewItem, known: Mapping[str, Image] | None = None) -> Item:
        """A new item, with the bytes of its images. `known`: those that were uploaded before, by their ids. Raises InvalidEvent."""
        return self._output_item(new) if new.type == _TOOL_OUTPUT else self._message_item(new, known or {})

    def insert(self, item: Item, *, after: str | None) -> tuple[ServerEvent, ...]:
        """Puts an item in whose images are kept. Raises InvalidEvent."""
        if item.role == "user":
            self._check_waiting_limits(item)
        named = item.named()
        is_long = sum(len(image.data) for image in item.images) > MAX_ECHO_BYTES
        previous, shown = self._items.create(named, after=after), (named if is_long else item).shown()
        return (
            ItemAdded(previous_item_id=previous, item=shown),
            ItemDone(previous_item_id=previous, item=shown),
        )

    def retrieve(self, event: ItemRetrieve) -> ServerEvent:
        """Return an item as it is now. Raises InvalidEvent."""
        return ItemRetrieved(item=self.item(event.item_id, "item_retrieve_invalid_item_id").shown())

    def delete(self, item_id: str) -> ServerEvent | str:
        """Delete a waiting item, or return the turn to roll back for an item of a reply. Raises InvalidEvent."""
        item = self.item(item_id, "item_delete_invalid_item_id")
        if item.state is ItemState.WAITING:
            self._items.remove(item_id)
            return ItemDeleted(item_id=item_id)
        if self._pending or item.status == "in_progress":
            raise InvalidEvent(
                "A reply is being written.", field="item_id", code="item_delete_invalid_item_id"
            )
        if item.role == "user":
            why = "The item was answered. Delete the reply first: the item waits again then."
            raise InvalidEvent(why, field="item_id", code="item_delete_invalid_item_id")
        return self._items.of_reply_chain(item.turn_id)[-1].turn_id

    def ask(self, event: ResponseCreate) -> tuple[frames.Send | frames.ToolResult, ...]:
        """Return what begins the next reply: outputs of open calls, else all waiting messages. Raises InvalidEvent."""
        return self._submit_tool_outputs(event) if self._items.open_calls() else (self._send(event),)

    def _submit_tool_outputs(self, event: ResponseCreate) -> tuple[frames.ToolResult, ...]:
        """Return the outputs of open calls. Raises InvalidEvent."""
        options, calls = event.response or ResponseOptions(), self._items.open_calls()
        if self._pending or self._is_writing():
            self._refuse_response()
        reject_changes(self.begun, options, self._limits)
        outcomes = {item.call_id: item for item in self._items.waiting("tool")}
        if missing := [call.call_id for call in calls if call.call_id not in outcomes]:
            why = f'The call "{missing[0]}" has no output: create its function_call_output, or cancel the response.'
            raise InvalidEvent(why, code="missing_function_call_output")
        self._pending = PendingTurn(
            request_id=calls[-1].turn_id,
            items=tuple(item.item_id for item in outcomes.values()),
            overrides_instructions=self._overrides_instructions,
            max_output_tokens=self.begun.max_output_tokens,
            metadata=options.metadata,
        )
        self._items.change(self._pending.items, state=ItemState.PENDING)
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
        """Return the waiting messages as one. Raises InvalidEvent."""
        options = event.response or ResponseOptions()
        settings = with_response_options(self.settings, options, self._limits)
        everything = self._items.waiting()
        if self._pending or not everything:
            self._refuse_response()
        max_chars = self._limits.max_content_chars + len(SEPARATOR)  # nothing follows the last
        waiting = self._fitting_items(everything, max_chars=max_chars) or everything[:1]
        self.begun = settings
        content, images = _merged(waiting)
        pending = self._pending = PendingTurn(
            request_id=f"realtime_{secrets.token_hex(12)}",
            items=tuple(item.item_id for item in waiting),
            overrides_instructions=settings.instructions != self.settings.instructions,
            max_output_tokens=settings.max_output_tokens,
            metadata=options.metadata,
            speaks=settings.speaks,
            shown=_image_positions(images),
        )
        self._items.change(pending.items, state=ItemState.PENDING)
        return frames.Send(
            ref=event.event_id,
            client_msg_id=pending.request_id,
            conversation_id=self.conversation_id,
            content=content,
            attachments=tuple(image.digest for image in images),
            on_busy="enqueue" if settings.speaks else "reject",
            params=self._params(settings),
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def speech_message(self, send: frames.Send, item_id: str) -> frames.Send:
        """Return spoken words as a message, after as many of the oldest waiting items as fit.

        `item_id`: of the item that it is, or will be.
        """
        settings = self.settings
        others = [one for one in self._items.waiting() if one.item_id != item_id]
        waiting = self._fitting_items(others, max_chars=self._limits.max_content_chars - len(send.content))
        self.begun = settings
        content, images = _merged(waiting, send.content)
        pending = self._pending_speech[send.client_msg_id] = PendingTurn(
            request_id=send.client_msg_id,
            items=(*(item.item_id for item in waiting), item_id),
            overrides_instructions=False,
            max_output_tokens=settings.max_output_tokens,
            metadata=None,
            speaks=settings.speaks,
            shown=_image_positions(images),
        )
        self._items.change(pending.items, state=ItemState.PENDING)
        return msgspec.structs.replace(
            send,
            ref=None,
            content=content,
            attachments=tuple(image.digest for image in images),
            params=self._params(settings),
            tools=settings.tools,
            tool_choice=settings.tool_choice,
        )

    def evict_for(self, text: str) -> list[ServerEvent]:
        """Make room for spoken words that wait: beyond the limits the oldest spoken item is dropped."""
        gone: list[ServerEvent] = []
        spoken = [item for item in self._items.waiting() if item.sound_ms is not None]
        for item in spoken:
            if self._fits(text):
                break
            self._items.remove(item.item_id)
            gone.append(ItemDeleted(item_id=item.item_id))
        return gone

    def accept(self, accepted: Accepted) -> PendingTurn | None:
        """Note that a turn was accepted; return the request, if it came from here."""
        if (pending := self._pop_pending(accepted.follows or accepted.client_msg_id)) is None:
            return None
        if accepted.follows is None:
            self._items.change(
                pending.items,
                state=ItemState.STORED,
                turn_id=accepted.turn_id,
                message_id=accepted.message_id,
            )
        self._overrides_instructions = pending.overrides_instructions
        return pending

    def image_positions(self, request_id: str) -> ImagePositions:
        """Where the images of a message stand that is on its way in, and their details."""
        pending = self._pending_speech.get(request_id, self._pending)
        return pending.shown if pending is not None and pending.request_id == request_id else ()

    @property
    def max_images(self) -> int:
        """How many images may wait; 0: the model takes none."""
        return self._limits.max_images

    @property
    def pending_request_id(self) -> str | None:
        """Return the `request_id` of the turn that waits to be accepted."""
        return None if self._pending is None else self._pending.request_id

    def requeue(self, request_id: str | None) -> None:
        """Note that a turn was refused: its items wait again."""
        if (pending := self._pop_pending(request_id)) is not None:
            still = [
                one
                for one in pending.items
                if (item := self._items.get(one)) and item.state is ItemState.PENDING
            ]
            self._items.change(still, state=ItemState.WAITING)

    def forget(self, item: Item) -> None:
        """Forget an item that is gone, and its turn that waits to be accepted."""
        if self._pending is not None and item.item_id in self._pending.items:
            self._pending = None
        for request_id in [
            one for one, pending in self._pending_speech.items() if item.item_id in pending.items
        ]:
            del self._pending_speech[request_id]

    def _pop_pending(self, request_id: str | None) -> PendingTurn | None:
        """Return the request of this name, and forget it."""
        if request_id in self._pending_speech:
            return self._pending_speech.pop(request_id)
        if request_id is None or request_id != self.pending_request_id:
            return None
        pending, self._pending = self._pending, None
        return pending

    def _message_item(self, new: NewItem, known: Mapping[str, Image]) -> Item:
        """Raises InvalidEvent."""
        text, images = text_and_images(new, self._limits, known)
        item = Item(item_id=_item_id(new), role="user", text=text, state=ItemState.WAITING, images=images)
        self._check_waiting_limits(item)
        return item

    def _output_item(self, new: NewItem) -> Item:
        """Return the output of an open call as an item. Raises InvalidEvent."""
        if new.call_id not in {call.call_id for call in self._items.open_calls()}:
            why = f'No call "{new.call_id}" waits for its output.'
            raise InvalidEvent(why, field="item.call_id", code="invalid_tool_call_id")
        if self._items.outcome(new.call_id) is not None:
            why = f'The call "{new.call_id}" has an output already.'
            raise InvalidEvent(why, field="item.call_id", code="invalid_tool_call_id")
        if new.output is None:
            raise InvalidEvent("is missing.", field="item.output")
        chars = len(new.output) + sum(len(item.text) for item in self._items.waiting("tool"))
        if len(new.output) > self._limits.max_content_chars or chars > RESULTS_CHARS:
            why = f"may have {self._limits.max_content_chars} characters, those of a reply {RESULTS_CHARS} together."
            raise InvalidEvent(why, field="item.output", code="content_too_long")
        return Item(
            item_id=_item_id(new), role="tool", text=new.output, state=ItemState.WAITING, call_id=new.call_id
        )

    def _params(self, settings: Settings) -> frames.Params:
        """Return a turn's parameters. A system prompt stays with its conversation, unless it was for one reply only."""
        params = msgspec.structs.replace(settings.params(), model=self._requested_model)
        return (
            msgspec.structs.replace(params, system="")
            if self._overrides_instructions and params.system is None
            else params
        )

    def _check_waiting_limits(self, item: Item) -> None:
        waiting, limit, most = self._items.waiting(), self._limits.max_content_chars, self._limits.max_images
        if len(waiting) >= MAX_WAITING:
            why = f"{MAX_WAITING} items wait for a reply already."
            raise InvalidEvent(why, field="item", code="too_many_items")
        images = sum(len(one.images) for one in (item, *waiting))
        if images > most:
            why = f"The items that wait show {images} images; {most} are allowed."
            raise InvalidEvent(why, field="item.content", code="too_many_images")
        chars = len(item.text) + sum(len(one.text) + len(SEPARATOR) for one in waiting)
        if chars > limit:
            why = f"The items that wait have {chars} characters; {limit} are allowed."
            raise InvalidEvent(why, field="item.content", code="content_too_long")

    def _fits(self, text: str) -> bool:
        """Return whether another item may wait."""
        waiting = self._items.waiting()
        chars = len(text) + sum(len(item.text) + len(SEPARATOR) for item in waiting)
        return len(waiting) < MAX_WAITING and chars <= self._limits.max_content_chars

    def _fitting_items(self, waiting: Sequence[Item], *, max_chars: int) -> list[Item]:
        """The first of them, as many as there is room for: so many characters, with what stands behind each, and images."""
        most = self._limits.max_images
        chars = accumulate(len(item.text) + len(SEPARATOR) for item in waiting)
        images = accumulate(len(item.images) for item in waiting)
        sizes = zip(waiting, chars, images, strict=True)
        return [item for item, so_far, shown in sizes if so_far <= max_chars and shown <= most]

    def _is_writing(self) -> bool:
        return any(item.status == "in_progress" for item in self._items)

    def _refuse_response(self) -> None:
        if self._pending or self._is_writing():
            raise InvalidEvent("A reply is being written.", code="conversation_already_has_active_response")
        raise InvalidEvent("No item waits for a reply: create one first.", code="no_item_to_answer")

    def item(self, item_id: str, code: str) -> Item:
        """Return an item that its client knows. Raises InvalidEvent, with the code."""
        if (item := self._items.get(item_id)) is None or not item.sent:
            raise InvalidEvent(f'There is no item "{item_id}", or it is too old.', field="item_id", code=code)
        return item

    def _session(self) -> Session | TranscriptionSession:
        if self.settings.sound is not None and self.settings.transcribes:
            return transcription_view(self.settings.sound, self._session_id)
        return session_view(
            self.settings,
            session_id=self._session_id,
            conversation_id=self.conversation_id,
            model=self._model,
        )


def _merged(items: Sequence[Item], *texts: str) -> Seen:
    """What items say and show, with texts behind them, as one message."""
    contents = ((item.text, item.images) for item in items)
    return together([*contents, *((text, ()) for text in texts)], SEPARATOR)


def _image_positions(images: Sequence[Image]) -> ImagePositions:
    return tuple((image.at, image.detail) for image in images)


def _item_id(item: NewItem) -> str:
    return item.id or f"item_{secrets.token_hex(12)}"
