"""The requests of one session's client: waiting items, options of replies, and the parts of the next turn. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from connections.openai.unserved import no_part
from connections.realtime.client_events import (
    ItemCreate,
    ItemRetrieve,
    Metadata,
    NewItem,
    Part,
    ResponseCreate,
    ResponseWishes,
    SessionUpdate,
    Tokens,
)
from connections.realtime.items import Item, Items, State
from connections.realtime.problems import Invalid
from connections.realtime.server_events import (
    Effort,
    FunctionTool,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    NamedFunction,
    ServerEvent,
    Session,
    SessionCreated,
    SessionUpdated,
)
from connections.realtime.settings import Settings, of_response, of_session, refuse_change
from connections.realtime.sound.told import AudioSettings, InputSettings, OutputSettings
from connections.realtime.sound.wishes import SoundSettings, in_force, named_format
from connections.wire import frames
from connections.wire.facts import Limits
from sessions.events import Accepted
from sessions.turn.calls import RESULTS_CHARS

BETWEEN = "\n\n"
"""Separates items that became one message."""
MAX_WAITING = 100
_OUTPUT = "function_call_output"
_WORDS = ("auto", "none", "required")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is not accepted yet: the items that it answers, and what its client wants repeated.

    `known_by`: its `client_msg_id`, or the turn whose calls it follows. `bends`: it has instructions of its own, which the
    store takes for the conversation's. `speaks`: its reply is spoken.
    """

    known_by: str
    items: tuple[str, ...]
    bends: bool
    max_output_tokens: Tokens
    metadata: Metadata | None
    speaks: bool = False


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
        self.settings = of_session(self.settings, event.session, self._limits)
        return SessionUpdated(session=self._session())

    def create(self, event: ItemCreate) -> tuple[ServerEvent, ...]:
        """Create an item. Raises Invalid."""
        item = self._outcome(event.item) if event.item.type == _OUTPUT else self._message(event.item)
        previous = self._items.create(item, behind=event.previous_item_id)
        shown = item.shown()
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
        asked = self._asked = Asked(
            known_by=f"realtime_{secrets.token_hex(12)}",
            items=tuple(item.item_id for item in waiting),
            bends=settings.instructions != self.settings.instructions,
            max_output_tokens=settings.max_output_tokens,
            metadata=wishes.metadata,
            speaks=settings.speaks,
        )
        self._items.change(asked.items, state=State.ASKED)
        return frames.Send(
            ref=event.event_id,
            client_msg_id=asked.known_by,
            conversation_id=self.conversation_id,
            content=BETWEEN.join(item.text for item in waiting),
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
        asked = self._said[send.client_msg_id] = Asked(
            known_by=send.client_msg_id,
            items=(*(item.item_id for item in waiting), item_id),
            bends=False,
            max_output_tokens=settings.max_output_tokens,
            metadata=None,
            speaks=settings.speaks,
        )
        self._items.change(asked.items, state=State.ASKED)
        return msgspec.structs.replace(
            send,
            ref=None,
            content=BETWEEN.join([*(item.text for item in waiting), send.content]),
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

    def _message(self, new: NewItem) -> Item:
        """Return a user's item. Raises Invalid."""
        text = _text_of(new)
        self._refuse_too_much(text)
        return Item(item_id=_id_of(new), role="user", text=text, state=State.WAITING)

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

    def _refuse_too_much(self, text: str) -> None:
        waiting, limit = self._items.waiting(), self._limits.max_content_chars
        if len(waiting) >= MAX_WAITING:
            why = f"{MAX_WAITING} items wait for a reply already."
            raise Invalid(why, field="item", code="too_many_items")
        chars = len(text) + sum(len(item.text) + len(BETWEEN) for item in waiting)
        if chars > limit:
            why = f"The items that wait have {chars} characters; {limit} are allowed."
            raise Invalid(why, field="item.content", code="content_too_long")

    def _has_room_for(self, text: str) -> bool:
        """Return whether another item may wait."""
        waiting = self._items.waiting()
        chars = len(text) + sum(len(item.text) + len(BETWEEN) for item in waiting)
        return len(waiting) < MAX_WAITING and chars <= self._limits.max_content_chars

    @staticmethod
    def _fitting(waiting: Sequence[Item], *, room: int) -> list[Item]:
        """Return the first ones that fit into so many characters, with their separators."""
        chars = accumulate(len(item.text) + len(BETWEEN) for item in waiting)
        return [item for item, so_far in zip(waiting, chars, strict=True) if so_far <= room]

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

    def _session(self) -> Session:
        instructions, choice = self.settings.instructions, self.settings.tool_choice
        return Session(
            id=self._session_id,
            model=self._model,
            conversation_id=self.conversation_id,
            instructions="" if isinstance(instructions, msgspec.UnsetType) else instructions,
            max_output_tokens=self.settings.max_output_tokens,
            temperature=self.settings.temperature,
            tools=tuple(_shown(tool) for tool in self.settings.tools),
            tool_choice=choice if choice in _WORDS else NamedFunction(name=choice),
            reasoning=None if self.settings.effort is None else Effort(self.settings.effort),
            output_modalities=("audio",) if self.settings.speaks else ("text",),
            audio=msgspec.UNSET if self.settings.sound is None else _audio(self.settings.sound),
        )


def _audio(sound: SoundSettings) -> AudioSettings:
    return AudioSettings(
        input=InputSettings(
            format=named_format(sound.input),
            turn_detection=in_force(sound.detection),
            transcription=sound.transcription,
        ),
        output=OutputSettings(format=named_format(sound.output), voice=sound.voice),
    )


def _id_of(item: NewItem) -> str:
    return item.id or f"item_{secrets.token_hex(12)}"


def _shown(tool: frames.OfferedTool) -> FunctionTool:
    return FunctionTool(name=tool.name, description=tool.description, parameters=tool.parameters or {})


def _text_of(item: NewItem) -> str:
    """Return a user's text. Raises Invalid."""
    if item.type != "message":
        raise Invalid(
            "must be message or function_call_output: calls are the model's own.", field="item.type"
        )
    if item.role == "system":
        raise Invalid("must be user. A system message is set by session.instructions.", field="item.role")
    if item.role != "user":
        raise Invalid("must be user: replies are the model's own.", field="item.role")
    text = "\n".join(_part(part, number) for number, part in enumerate(item.content or ()))
    if not text:
        raise Invalid("is empty.", field="item.content")
    return text


def _part(part: Part, number: int) -> str:
    if part.type != "input_text":
        raise Invalid(no_part(part.type), field=f"item.content[{number}].type")
    if part.text is None:
        raise Invalid("is missing.", field=f"item.content[{number}].text")
    return part.text
