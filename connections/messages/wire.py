"""Anthropic's answers, as far as sent (API reference: Messages, Streaming, Errors). Only types, with its names."""

from __future__ import annotations

from typing import Literal

import msgspec

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
