"""Anthropic's answers as far as they are given (API reference: Messages, Streaming, Errors). Only types; fields are named as they are there."""

from __future__ import annotations

from typing import Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """What the model thought. `signature`: a sum of the text, by which nobody can prove anything."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call. `input`: a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct, frozen=True):
    """Of a reply's tokens."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Tokens. The prompt has `input_tokens` that were computed and `cache_read_input_tokens` that were kept from before.

    `cache_creation_input_tokens` is 0: what is kept for later costs nothing more.
    """

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: ThinkingTokens
    cache_creation_input_tokens: int = 0


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A reply; as a stream begins it, without content and without an end."""

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
    """A block begins: an empty one."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    """More of what is thought."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag="signature_delta"):
    """The signature of what was thought, at its end."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    """The text of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    """A block is whole."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True):
    """Why a reply ended. `stop_sequence`: which of the request's did it."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    """A reply ended. `usage`: all of it."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    """Nothing follows."""


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The stream is alive."""


class MessageProblem(msgspec.Struct, frozen=True):
    """What went wrong: a kind for programs, a sentence for people."""

    type: str
    message: str


class MessageError(msgspec.Struct, frozen=True, tag="error"):
    """The body of a refusal, and of a stream's `error` event."""

    error: MessageProblem
    request_id: str


class TokensCount(msgspec.Struct, frozen=True):
    """How many tokens a prompt has."""

    input_tokens: int


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | MessageError
