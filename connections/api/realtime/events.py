"""The events of Realtime clients (OpenAI's API reference: client events), and what all events for them have in common.

Unknown fields of clients' events are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.protocol.errors import field_message, shorten
from connections.protocol.frames import Error
from sessions.errors import Refused

NULL = msgspec.Raw(b"null")
EventId = Annotated[str, Meta(max_length=512)]
ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]
TokenLimit = int | Literal["inf"]
TRANSCRIPTION = "transcription"
"""The `intent` of a session that only transcribes."""
ItemStatus = Literal["completed", "incomplete", "in_progress"]
_FIELD = re.compile(r"`([A-Za-z_]+(?:\.[A-Za-z_]+|\[(?:\d+|\.\.\.)\])*)`(: )?")
"""The field that begins a message; before a colon, not part of the sentence."""
_FIELDS = {
    "params.system": "response.instructions",
    "params.max_new_tokens": "response.max_output_tokens",
    "params.temperature": "response.temperature",
    "reasoning": "response.reasoning",
    "tools": "response.tools",
    "tool_choice": "response.tool_choice",
    "attachments": "item.content",
}
"""This endpoint's names of a turn's fields."""
_CODES = {
    "bad_frame": "invalid_event",
    "bad_params": "invalid_value",
    "busy": "conversation_already_has_active_response",
    "context_overflow": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
}
_TYPES = {
    "forbidden": "permission_error",
    "rate_limited": "rate_limit_error",
    "store_full": "rate_limit_error",
    "session_expired": "authentication_error",
    "unauthenticated": "authentication_error",
    "draining": "server_error",
    "engine_unavailable": "server_error",
    "events_lost": "server_error",
    "internal": "server_error",
    "overloaded": "server_error",
    "store_unavailable": "server_error",
}


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of clients' events."""

    ref: EventId | None = msgspec.field(name="event_id", default=None)
    """The id in its errors."""


class Part(msgspec.Struct, frozen=True):
    """A part of an item's content. `image_url`: an image in a `data:` URL."""

    type: str = "input_text"
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """A client's item. `call_id`, `output`: of a call's result."""

    type: str = "message"
    id: ItemId | None = None
    role: str | None = None
    content: list[Part] | None = None
    call_id: str | None = None
    output: str | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call. `parameters`: a JSON Schema of an object."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The only function to call."""

    type: str = "function"
    name: str | None = None


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """How much the model reasons."""

    effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None


class CommonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of replies. Unsupported ones that would change replies are here to be refused by name."""

    instructions: str | UnsetType | None = UNSET
    max_output_tokens: TokenLimit | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: str | NamedFunction | UnsetType | None = UNSET
    reasoning: Reasoning | UnsetType | None = UNSET
    output_modalities: list[str] | None = None
    audio: AudioOptions | None = None
    parallel_tool_calls: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL


class SessionOptions(CommonOptions, frozen=True, kw_only=True):
    """Options of all replies from now on."""

    type: str = "realtime"


class ResponseOptions(CommonOptions, frozen=True, kw_only=True):
    """Options of one reply."""

    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    conversation: str | None = None
    input: msgspec.Raw = NULL


class AudioFormat(msgspec.Struct, frozen=True):
    """The format of samples; always one channel."""

    type: str = "audio/pcm"
    rate: int | None = None


class Detection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the user's turn ends, and what follows."""

    type: Literal["server_vad", "semantic_vad"]
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """The words of the user are sent. There is one recognizer, whatever `model` says."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class AudioInputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the client's sound."""

    format: AudioFormat | UnsetType | None = UNSET
    turn_detection: Detection | UnsetType | None = UNSET
    transcription: Transcription | UnsetType | None = UNSET


class AudioOutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of replies' sound."""

    format: AudioFormat | UnsetType | None = UNSET
    voice: str | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET


class AudioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of sound in both directions."""

    input: AudioInputOptions | None = None
    output: AudioOutputOptions | None = None


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    """Changes options of replies."""

    session: SessionOptions


class ItemCreate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.create"):
    """An item. `previous_item_id`: the item before it; None: the last one; `root`: none."""

    item: NewItem
    previous_item_id: ItemId | None = None


class ItemRetrieve(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Asks for an item as it is now."""

    item_id: ItemId


class ItemDelete(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Removes an item."""

    item_id: ItemId


class ItemTruncate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """Reports how much of an item's sound was heard."""

    item_id: str
    audio_end_ms: Annotated[int, Meta(ge=0)]
    content_index: int = 0


class ResponseCreate(ClientEvent, frozen=True, kw_only=True, tag="response.create"):
    """Asks for a reply."""

    response: ResponseOptions | None = None


class ResponseCancel(ClientEvent, frozen=True, kw_only=True, tag="response.cancel"):
    """Stops a reply."""

    response_id: ItemId | None = None


class InputAppend(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """The microphone's sound, in base64."""

    audio: str


class InputCommit(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """Makes the current utterance an item."""


class InputClear(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Drops the current utterance."""


AnyClientEvent = (
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
)


Event = dict[str, Any]
"""An event for a client (OpenAI's API reference: server events), as JSON. Its id is set when it is encoded."""


def event(kind: str, **fields: Any) -> Event:
    """Return an event of a type."""
    return {"type": kind, "event_id": "", **fields}


class InvalidEvent(Refused):
    """An event that can't be carried out. `why` follows the name of the field, or is a whole sentence."""

    def __init__(self, why: str, *, field: str | None = None, code: str = "invalid_value") -> None:
        starts_anew = why[:1].isupper()
        named = why if field is None else f"`{field}`: {why}" if starts_anew else field_message(field, why)
        super().__init__(shorten(named))
        self.code = code


def complete_item(previous: str | None, item: Mapping[str, Any]) -> tuple[Event, Event]:
    """Return the events of an item that is complete at once."""
    about = {"previous_item_id": previous, "item": item}
    return event("conversation.item.added", **about), event("conversation.item.done", **about)


def error_event(error: Error) -> Event:
    """Return a refusal as an event."""
    message, param = error.message, None
    if (found := _FIELD.match(message)) is not None:
        param, rest = _FIELDS.get(found[1], found[1]), message[found.end() :]
        message = rest if found[2] else f"`{param}`{rest}"
    return event(
        "error",
        error={
            "type": _TYPES.get(error.code, "invalid_request_error"),
            "code": _CODES.get(error.code, error.code),
            "message": message,
            "param": param,
            "event_id": error.ref,
        },
    )
