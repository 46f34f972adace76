"""Anthropic's requests and answers, as far as supported (API reference: Messages, Count tokens, Streaming, Errors). Only types."""

from __future__ import annotations

from typing import Literal

import msgspec

from connections.api.fields import null


class ResultBlock(msgspec.Struct, frozen=True):
    """A part of a tool's result: `text`, `tool_reference` (a tool that a search found), or a type that is refused."""

    type: str
    text: str | None = None
    tool_name: str | None = None


class Source(msgspec.Struct, frozen=True):
    """The source of an image or a document: `base64`, `url`, or another."""

    type: str
    media_type: str = ""
    data: str | None = None
    url: str | None = None


class ToolReference(msgspec.Struct, frozen=True):
    """The tool that a change is about: `tool_reference`, or another type, which is refused."""

    type: str
    name: str = ""


class InputBlock(msgspec.Struct, frozen=True):
    """A part of a message: `text`, `image`, `thinking`, `tool_use`, `tool_result`, or a type that is refused.

    System messages may also have `tool_addition` and `tool_removal`.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=null)
    tool_use_id: str | None = None
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None
    source: Source | None = None
    tool: ToolReference | None = None


class InputMessage(msgspec.Struct, frozen=True):
    """A message of a request. `clear_at`: `next_user_message` hides a system message once a later user message exists."""

    role: str
    content: str | list[InputBlock]
    clear_at: str | None = None


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `input_schema`: a JSON Schema of an object. Tools of others have another `type`.

    `defer_loading` has no effect: the model is shown all tools from the start.
    """

    name: str = ""
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None
    type: str | None = None


class ToolUseChoice(msgspec.Struct, frozen=True):
    """`auto`, `any`, `tool` (the named one) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    """`enabled`, `disabled` or `adaptive`. `display`: with `omitted` no reasoning is sent."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """A JSON Schema for the reply."""

    type: str
    schema: msgspec.Raw = msgspec.field(default_factory=null)


class OutputConfig(msgspec.Struct, frozen=True):
    """The format of the reply, and how much effort goes into it."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `POST /v1/messages/count_tokens`: all parts of a prompt.

    `cache_control` has no effect: prompts are cached in any case.
    """

    model: str
    messages: list[InputMessage]
    system: str | list[ResultBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolUseChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


class RequestMetadata(msgspec.Struct, frozen=True):
    """The user for whom an application asks."""

    user_id: str | None = None


class MessageRequest(CountRequest, frozen=True, kw_only=True):
    """A request of `POST /v1/messages`. `metadata` names the user; `service_tier` has no effect here."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: RequestMetadata | None = None

    @property
    def shows_reasoning(self) -> bool:
        """Whether reasoning is sent."""
        return self.thinking is None or self.thinking.display != "omitted"


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """Reasoning. `signature`: a hash of the text, which proves nothing."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call. `input`: a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct, frozen=True):
    """Reasoning tokens, as a part of the reply's."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Tokens. The prompt has `input_tokens` that were computed, and `cache_read_input_tokens` from the cache.

    `cache_creation_input_tokens` is 0: caching has no price.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: ThinkingTokens
    cache_creation_input_tokens: int = 0


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A reply; at the beginning of a stream without content and end."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[Block, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    """A stream begins."""

    message: ReplyMessage


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    """A block begins, still empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag="signature_delta"):
    """The signature of the reasoning, at its end."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    """The text of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True):
    """Why a reply ended. `stop_sequence`: the one that ended it."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    """A reply ended. `usage`: of the whole reply."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    """Nothing follows."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The stream is alive."""


class ProblemDetails(msgspec.Struct, frozen=True):
    """Why a field can't be followed, in a form that Anthropic's SDKs act on."""

    error_code: str
    unsupported: tuple[()] = ()


class MessageProblem(msgspec.Struct, frozen=True):
    """A failure: a type for programs, a sentence for people."""

    type: str
    message: str
    details: ProblemDetails | msgspec.UnsetType = msgspec.UNSET


class MessageError(msgspec.Struct, frozen=True, tag="error"):
    """The body of a refusal, and of a stream's `error` event."""

    error: MessageProblem
    request_id: str


class TokensCount(msgspec.Struct, frozen=True):
    """The number of tokens of a prompt."""

    input_tokens: int


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessageError
