"""What Realtime clients send (OpenAI's API reference: Realtime client events). Only types; unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.wire.frames import AttachmentId

NULL = msgspec.Raw(b"null")

EventId = Annotated[str, Meta(max_length=512)]
ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]
Tokens = int | Literal["inf"]


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of what clients send."""

    event_id: EventId | None = None

    @property
    def ref(self) -> str | None:
        """What an error carries back."""
        return self.event_id


class Part(msgspec.Struct, frozen=True):
    """A part of an item's content. `audio`: sound in base64, in the session's format; `image_url`: an image in a `data:` URL.

    `attachment_id` is ours: an image that was uploaded.
    """

    type: str = "input_text"
    text: str | None = None
    audio: str | None = None
    image_url: str | None = None
    detail: str | None = None
    attachment_id: AttachmentId | None = None


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as a client makes it. `call_id`, `output`: of what came of a call."""

    type: str = "message"
    id: ItemId | None = None
    role: str | None = None
    content: list[Part] | None = None
    call_id: str | None = None
    output: str | None = None


class NewTool(msgspec.Struct, frozen=True, kw_only=True):
    """What the model may call. `parameters`: a JSON Schema of an object."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NewChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Names the one function that is to be called."""

    type: str = "function"
    name: str | None = None


class NewReasoning(msgspec.Struct, frozen=True, kw_only=True):
    """How much is thought."""

    effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """How replies are made. What would change them and is not served is here to be refused by its name."""

    instructions: str | UnsetType | None = UNSET
    max_output_tokens: Tokens | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    tools: list[NewTool] | UnsetType | None = UNSET
    tool_choice: str | NewChoice | UnsetType | None = UNSET
    reasoning: NewReasoning | UnsetType | None = UNSET
    output_modalities: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    parallel_tool_calls: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL


class SessionWishes(Wishes, frozen=True, kw_only=True):
    """Of all replies from now on."""

    type: str = "realtime"


class ResponseWishes(Wishes, frozen=True, kw_only=True):
    """Of one reply."""

    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    conversation: str | None = None
    input: msgspec.Raw = NULL


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    """Changes how replies are made."""

    session: SessionWishes


class ItemCreate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.create"):
    """A message. `previous_item_id`: the item that it goes behind; None: at the end; `root`: at the beginning."""

    item: NewItem
    previous_item_id: ItemId | None = None


class ItemRetrieve(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Asks for an item as it stands."""

    item_id: ItemId


class ItemDelete(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Takes an item out."""

    item_id: ItemId


class ItemTruncate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """Says how much of an item's sound was heard."""

    item_id: str
    audio_end_ms: Annotated[int, Meta(ge=0)]
    content_index: int = 0


class ResponseCreate(ClientEvent, frozen=True, kw_only=True, tag="response.create"):
    """Asks for a reply."""

    response: ResponseWishes | None = None


class ResponseCancel(ClientEvent, frozen=True, kw_only=True, tag="response.cancel"):
    """Stops a reply."""

    response_id: ItemId | None = None


class Sound(ClientEvent, frozen=True, kw_only=True):
    """The root of what is about sound."""


class InputAppend(Sound, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """What the microphone hears, in base64."""

    audio: str


class InputCommit(Sound, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """What was said so far is an item."""


class InputClear(Sound, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """What was said so far is forgotten."""


class OutputClear(Sound, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    """What is played ends."""


Asks = (
    SessionUpdate
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | InputAppend
    | InputCommit
    | InputClear
    | OutputClear
)
