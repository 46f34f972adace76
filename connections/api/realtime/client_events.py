"""The events of Realtime clients (OpenAI's API reference: client events). Only types; unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from connections.protocol.frames import AttachmentId

NULL = msgspec.Raw(b"null")
EventId = Annotated[str, Meta(max_length=512)]
ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]
TokenLimit = int | Literal["inf"]
TRANSCRIPTION = "transcription"
"""The `intent` of a session that only transcribes."""


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of clients' events."""

    event_id: EventId | None = None

    @property
    def ref(self) -> str | None:
        """What an error repeats."""
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
    """A client's item. `call_id`, `output`: of a call's result."""

    type: str = "message"
    id: ItemId | None = None
    role: str | None = None
    content: list[Part] | None = None
    call_id: str | None = None
    output: str | None = None


class NewTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call. `parameters`: a JSON Schema of an object."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NewChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Names the only function to call."""

    type: str = "function"
    name: str | None = None


class NewReasoning(msgspec.Struct, frozen=True, kw_only=True):
    """How much the model reasons."""

    effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None


class CommonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of replies. Unsupported ones that would change replies are here to be refused by name."""

    instructions: str | UnsetType | None = UNSET
    max_output_tokens: TokenLimit | UnsetType | None = UNSET
    temperature: float | UnsetType | None = UNSET
    tools: list[NewTool] | UnsetType | None = UNSET
    tool_choice: str | NewChoice | UnsetType | None = UNSET
    reasoning: NewReasoning | UnsetType | None = UNSET
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


class VoiceId(msgspec.Struct, frozen=True):
    """A voice of the client's own, which is not supported."""

    id: str


class AudioInputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the client's sound."""

    format: AudioFormat | UnsetType | None = UNSET
    turn_detection: Detection | UnsetType | None = UNSET
    transcription: Transcription | UnsetType | None = UNSET


class AudioOutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of replies' sound."""

    format: AudioFormat | UnsetType | None = UNSET
    voice: str | VoiceId | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET


class AudioOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of sound in both directions."""

    input: AudioInputOptions | UnsetType | None = UNSET
    output: AudioOutputOptions | UnsetType | None = UNSET


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    """Changes options of replies."""

    session: SessionOptions


class TranscriptionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a transcription session by the names of the API's beta."""

    input_audio_format: str | UnsetType | None = UNSET
    input_audio_transcription: msgspec.Raw | UnsetType = UNSET
    turn_detection: msgspec.Raw | UnsetType = UNSET


class TranscriptionUpdate(ClientEvent, frozen=True, kw_only=True, tag="transcription_session.update"):
    """The beta's way to change options of a transcription session."""

    session: TranscriptionOptions


class ItemCreate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.create"):
    """A message. `previous_item_id`: the item before it; None: the last one; `root`: none."""

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


class AudioEvent(ClientEvent, frozen=True, kw_only=True):
    """The root of events about sound."""


class InputAppend(AudioEvent, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """The microphone's sound, in base64."""

    audio: str


class InputCommit(AudioEvent, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """Makes the current utterance an item."""


class InputClear(AudioEvent, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Drops the current utterance."""


class OutputClear(AudioEvent, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    """Stops playback."""


AnyClientEvent = (
    SessionUpdate
    | TranscriptionUpdate
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
