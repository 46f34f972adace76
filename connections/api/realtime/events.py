"""The events of Realtime clients, and those for them (OpenAI's API reference: client events, server events). Only types.

Unknown fields of clients' events are ignored. `event_id` is set when a server's event is encoded.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.protocol.errors import field_message, shorten
from connections.protocol.frames import AttachmentId, Error
from sessions.errors import Refused

NULL = msgspec.Raw(b"null")
EventId = Annotated[str, Meta(max_length=512)]
ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]
TokenLimit = int | Literal["inf"]
TRANSCRIPTION = "transcription"
"""The `intent` of a session that only transcribes."""
Modality = Literal["text", "audio"]
ItemStatus = Literal["completed", "incomplete", "in_progress"]
ResponseStatus = Literal["completed", "cancelled", "incomplete", "failed", "in_progress"]
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
    output_modalities: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
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
    """Options of the client's sound, requested or current. `noise_reduction` has no effect."""

    format: AudioFormat | UnsetType | None = UNSET
    turn_detection: Detection | UnsetType | None = UNSET
    transcription: Transcription | UnsetType | None = UNSET
    noise_reduction: msgspec.Raw = NULL


class AudioOutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of replies' sound, requested or current."""

    format: AudioFormat | UnsetType | None = UNSET
    voice: str | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET


class AudioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of sound in both directions, requested or current. A transcription session has no `output`."""

    input: AudioInputOptions | UnsetType | None = UNSET
    output: AudioOutputOptions | UnsetType | None = UNSET


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


class OutputClear(ClientEvent, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    """Stops playback."""


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
    | OutputClear
)


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of the server's events."""

    event_id: str = ""


class Content(msgspec.Struct, frozen=True):
    """The text of an item."""

    type: Literal["input_text", "output_text"]
    text: str


class ImageContent(msgspec.Struct, frozen=True, kw_only=True):
    """An image of an item. `image_url`: the image itself while its item is created; later None.

    `attachment_id` is ours: its id wherever attachments are read.
    """

    type: Literal["input_image"] = "input_image"
    image_url: str | None
    detail: str
    attachment_id: str


class SpokenContent(msgspec.Struct, frozen=True):
    """The words of a spoken item; its sound is not kept. `transcript`: None if they follow in an event."""

    type: Literal["input_audio", "output_audio"]
    transcript: str | None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the user or the model."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["message"] = "message"
    status: ItemStatus
    role: Literal["user", "assistant"]
    content: tuple[Content | ImageContent, ...] | tuple[SpokenContent, ...]


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the model. `arguments`: the text of a JSON object, empty at first."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a call, as the model reads it."""

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["function_call_output"] = "function_call_output"
    status: ItemStatus
    call_id: str
    output: str


Item = Message | FunctionCall | FunctionCallOutput


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The current settings. `conversation_id` is our own: the value for `?conversation_id=`."""

    id: str
    object: Literal["realtime.session"] = "realtime.session"
    type: Literal["realtime"] = "realtime"
    model: str
    conversation_id: str
    output_modalities: tuple[Modality, ...] = ("text",)
    audio: AudioOptions | UnsetType = UNSET
    instructions: str = ""
    max_output_tokens: TokenLimit = "inf"
    temperature: float | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str | NamedFunction = "auto"
    reasoning: Reasoning | None = None
    tracing: None = None


class TranscriptionSession(msgspec.Struct, frozen=True, kw_only=True):
    """The current settings of a session that only transcribes."""

    id: str
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    type: Literal["transcription"] = "transcription"
    audio: AudioOptions


class Failure(msgspec.Struct, frozen=True):
    """Why a response failed."""

    type: str
    code: str
    message: str


class StatusDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a response ended."""

    type: ResponseStatus
    reason: Literal["client_cancelled", "turn_detected", "max_output_tokens", "content_filter"] | None = None
    error: Failure | None = None


class CachedTokens(msgspec.Struct, frozen=True):
    """Tokens whose keys and values were reused."""

    text_tokens: int
    audio_tokens: int = 0
    image_tokens: int = 0


class InputTokens(msgspec.Struct, frozen=True):
    """Details of the prompt's tokens."""

    text_tokens: int
    cached_tokens: int
    cached_tokens_details: CachedTokens
    audio_tokens: int = 0
    image_tokens: int = 0


class OutputTokens(msgspec.Struct, frozen=True):
    """Details of the reply's tokens."""

    text_tokens: int
    audio_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a response."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokens
    output_token_details: OutputTokens


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A reply. `model` is our own: the model that wrote it, once it has ended."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: ResponseStatus = "in_progress"
    status_details: StatusDetails | None = None
    output: tuple[Item, ...] = ()
    conversation_id: str
    output_modalities: tuple[Modality, ...] = ("text",)
    max_output_tokens: TokenLimit = "inf"
    metadata: Metadata | None = None
    usage: Usage | None = None
    model: str | UnsetType = UNSET


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A failure. `event_id`: of the client's event that caused it; `param`: the field's name."""

    type: str
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    """The first event."""

    session: Session | TranscriptionSession


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    """Answers `session.update`."""

    session: Session | TranscriptionSession


class ItemAdded(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.added"):
    """An item exists."""

    previous_item_id: str | None
    item: Item


class ItemDone(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.done"):
    """An item is complete."""

    previous_item_id: str | None
    item: Item


class ItemRetrieved(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.retrieved"):
    """Answers `conversation.item.retrieve`."""

    item: Item


class ItemDeleted(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.deleted"):
    """An item was removed."""

    item_id: str


class ResponseCreated(ServerEvent, frozen=True, kw_only=True, tag="response.created"):
    """A reply begins."""

    response: Response


class ResponseDone(ServerEvent, frozen=True, kw_only=True, tag="response.done"):
    """A reply has ended, in any way."""

    response: Response


class OutputItemAdded(ServerEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item of a reply exists."""

    response_id: str
    output_index: int
    item: Item


class OutputItemDone(ServerEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item of a reply is complete."""

    response_id: str
    output_index: int
    item: Item


class TextPart(msgspec.Struct, frozen=True):
    """The only part of a reply."""

    text: str
    type: Literal["text"] = "text"


class AudioPart(msgspec.Struct, frozen=True):
    """The only part of a spoken reply."""

    transcript: str
    type: Literal["audio"] = "audio"


class ResponseContentEvent(ServerEvent, frozen=True, kw_only=True):
    """The root of events about a reply's text or sound."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(ResponseContentEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """Text will follow."""

    part: TextPart | AudioPart


class ContentPartDone(ResponseContentEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The text is complete."""

    part: TextPart | AudioPart


class OutputTextDelta(ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str


class OutputTextDone(ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text, as stored."""

    text: str


class FunctionCallEvent(ServerEvent, frozen=True, kw_only=True):
    """The root of events about a call's arguments."""

    response_id: str
    item_id: str
    output_index: int
    call_id: str


class ArgumentsDelta(
    FunctionCallEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More arguments; they come in one piece."""

    delta: str


class ArgumentsDone(
    FunctionCallEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """The arguments are complete."""

    name: str
    arguments: str


class ErrorEvent(ServerEvent, frozen=True, kw_only=True, tag="error"):
    """A refusal or a failure; the session continues."""

    error: ErrorDetails


class SpeechStarted(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_started"):
    """Speech began. `item_id`: of its future item."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """Speech has ended."""

    audio_end_ms: int
    item_id: str


class Committed(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.committed"):
    """The utterance becomes an item."""

    previous_item_id: str | None
    item_id: str


class Cleared(ServerEvent, frozen=True, kw_only=True, tag="input_audio_buffer.cleared"):
    """The utterance was dropped."""


class Duration(msgspec.Struct, frozen=True):
    """The length of speech."""

    seconds: float
    type: Literal["duration"] = "duration"


class TranscriptDelta(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    """More words."""

    item_id: str
    content_index: int = 0
    delta: str


class TranscriptCompleted(
    ServerEvent, frozen=True, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """All words, as the history has them."""

    item_id: str
    content_index: int = 0
    transcript: str
    usage: Duration


class OutputAudioDelta(ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio.delta"):
    """More sound, in base64."""

    delta: str


class OutputAudioDone(ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio.done"):
    """The sound is complete."""


class OutputTranscriptDelta(
    ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.delta"
):
    """More words, ahead of their sound."""

    delta: str


class OutputTranscriptDone(
    ResponseContentEvent, frozen=True, kw_only=True, tag="response.output_audio_transcript.done"
):
    """All words that count: of a reply that was cut, those that were heard."""

    transcript: str


class ItemTruncated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.truncated"):
    """An item ends at what was heard. `audio_end_ms`: its length now; `transcript` is our own: the remaining words."""

    item_id: str
    content_index: int = 0
    audio_end_ms: int
    transcript: str


class OutputCleared(ServerEvent, frozen=True, kw_only=True, tag="output_audio_buffer.cleared"):
    """A reply's playback stopped."""

    response_id: str


class InvalidEvent(Refused):
    """An event that can't be carried out. `why` follows the name of the field, or is a whole sentence."""

    def __init__(self, why: str, *, field: str | None = None, code: str = "invalid_value") -> None:
        starts_anew = why[:1].isupper()
        named = why if field is None else f"`{field}`: {why}" if starts_anew else field_message(field, why)
        super().__init__(shorten(named))
        self.code = code


def complete_item(previous: str | None, item: Item) -> tuple[ServerEvent, ...]:
    """Return the events of an item that is complete at once."""
    return ItemAdded(previous_item_id=previous, item=item), ItemDone(previous_item_id=previous, item=item)


def error_event(error: Error) -> ErrorEvent:
    """Return a refusal as an event."""
    message, param = error.message, None
    if (found := _FIELD.match(message)) is not None:
        param, rest = _FIELDS.get(found[1], found[1]), message[found.end() :]
        message = rest if found[2] else f"`{param}`{rest}"
    return ErrorEvent(
        error=ErrorDetails(
            type=_TYPES.get(error.code, "invalid_request_error"),
            code=_CODES.get(error.code, error.code),
            message=message,
            param=param,
            event_id=error.ref,
        )
    )
