"""The Responses API's answers and events, as far as sent. Only types, with its names (OpenAI; Open Responses)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from connections.api.replies import ReplyToken
from connections.http import Refusal

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of a stream's events."""

    sequence_number: int = 0


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    """A text of a reply."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[ReplyToken, ...] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    """A model's reasoning."""

    text: str


class InputImage(msgspec.Struct, frozen=True, tag="input_image"):
    """An image of a request, in a `data:` URL; null: it is no longer stored."""

    image_url: str | None
    detail: str = "auto"
    file_id: None = None


class InputText(msgspec.Struct, frozen=True, tag="input_text"):
    """A text of a request."""

    text: str


Part = OutputText | ReasoningText


class Message(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message of the model or its user."""

    id: str
    status: ItemStatus
    role: Literal["assistant", "user"] = "assistant"
    content: tuple[OutputText | InputText | InputImage, ...] = ()


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call. `arguments`: the text of a JSON object; `call_id`: its output refers to this; `namespace`: of the function."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class FunctionCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag="function_call_output"):
    """The stored result of a call."""

    id: str
    status: ItemStatus = "completed"
    call_id: str
    output: str


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """A model's reasoning. `encrypted_content`: the same for a client to send back, if requested."""

    id: str
    status: ItemStatus
    summary: tuple[()] = ()
    content: tuple[ReasoningText, ...] = ()
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET


Output = Message | FunctionCall | ReasoningItem
InputItem = FunctionCallOutput | Output
"""An item that a response answered."""


class InputDetails(msgspec.Struct, frozen=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Details of the reply's tokens."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failed(msgspec.Struct, frozen=True):
    """Why a response has no regular end."""

    code: str
    message: str


class Incomplete(msgspec.Struct, frozen=True):
    """Why a response ended early: `max_output_tokens` or `content_filter`; `cancelled` if its client stopped it."""

    reason: str


class Effort(msgspec.Struct, frozen=True):
    """The requested reasoning."""

    effort: str | None = None
    summary: str | None = None


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    """A tool that the reply may call."""

    name: str
    description: str | None
    parameters: msgspec.Raw
    strict: bool | None


class NamespaceTool(msgspec.Struct, frozen=True, kw_only=True, tag="namespace"):
    """Functions that the reply may call under the name of their namespace."""

    name: str
    description: str | None
    tools: tuple[FunctionTool, ...]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. `created_at`: Unix seconds."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation was deleted."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ConversationId(msgspec.Struct, frozen=True):
    """The conversation that stores a response."""

    id: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response, and how it was requested. Times are Unix seconds."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    incomplete_details: Incomplete | None = None
    error: Failed | None = None
    model: str
    output: tuple[Output, ...] = ()
    usage: Usage | None = None
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    instructions: str | None = None
    tools: tuple[FunctionTool | NamespaceTool, ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    reasoning: Effort = Effort()
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    store: bool = False
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class Created(Event, frozen=True, kw_only=True, tag="response.created"):
    """A response exists."""

    response: Response


class InProgress(Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """The response is being written."""

    response: Response


class Completed(Event, frozen=True, kw_only=True, tag="response.completed"):
    """The response is complete."""

    response: Response


class ResponseIncomplete(Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response was cut off, or stopped."""

    response: Response


class ResponseFailed(Event, frozen=True, kw_only=True, tag="response.failed"):
    """The response has no regular end."""

    response: Response


class ItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Output


class ItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""

    output_index: int
    item: Output


class ItemEvent(Event, frozen=True, kw_only=True):
    """The root of events about an open item."""

    item_id: str
    output_index: int


class PartEvent(ItemEvent, frozen=True, kw_only=True):
    """The root of events about item parts."""

    content_index: int = 0


class PartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part begins."""

    part: Part


class PartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part is complete."""

    part: Part


class TextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: tuple[ReplyToken, ...] = ()


class TextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: tuple[ReplyToken, ...] = ()


class ReasoningDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All of the reasoning."""

    text: str


class ArgumentsDelta(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """Arguments of a call, which come in one piece."""

    delta: str


class ArgumentsDone(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a call."""

    name: str
    arguments: str


class Cancelled(Event, frozen=True, kw_only=True, tag="midstream:response.cancelled"):
    """Only from this server: a response was stopped. `steps_after`: engine steps after that, null if not known."""

    response_id: str
    latency_ms: float
    steps_after: int | None


class ErrorEvent(Event, frozen=True, kw_only=True, tag="error"):
    """A request on a WebSocket was refused. OpenAI's clients read the fields beside `error`, others those in it."""

    status: int
    code: str
    message: str
    param: str | None
    error: Refusal


StreamEvent = (
    Created
    | InProgress
    | Completed
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | Cancelled
    | ErrorEvent
)


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A response was deleted."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: Sequence[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
