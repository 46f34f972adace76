"""The chunks of the AI SDK's UI message stream (version 1), as types. Pure; knows nothing of turns."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "error", "other"]
encode = msgspec.json.Encoder().encode


class Chunk(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True):
    """The root of all chunks."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Facts of a turn's end besides its text. `chars`, `text_sha256`: of the stored text.

    `cause`, `steps_after`, of a stopped reply: who stopped it, and engine steps after that.
    """

    turn_id: str
    reason: str
    chars: int
    text_sha256: str
    prompt_tokens: int
    generated_tokens: int
    model: str | None = None
    cause: str | None = None
    steps_after: int | None = None


class Metadata(msgspec.Struct, frozen=True):
    """The server's part of a message's metadata."""

    midstream: Facts


class Start(Chunk, frozen=True, kw_only=True, tag="start"):
    """A message begins, or continues if it is known."""

    message_id: str


class StartStep(Chunk, frozen=True, kw_only=True, tag="start-step"):
    """A turn begins: a message has several if it calls tools."""


class FinishStep(Chunk, frozen=True, kw_only=True, tag="finish-step"):
    """A turn has ended."""


class TextStart(Chunk, frozen=True, kw_only=True, tag="text-start"):
    """A text part begins."""

    id: str


class TextDelta(Chunk, frozen=True, kw_only=True, tag="text-delta"):
    """More of the part."""

    id: str
    delta: str


class TextEnd(Chunk, frozen=True, kw_only=True, tag="text-end"):
    """The part has ended."""

    id: str


class ReasoningStart(Chunk, frozen=True, kw_only=True, tag="reasoning-start"):
    """A reasoning part begins."""

    id: str


class ReasoningDelta(Chunk, frozen=True, kw_only=True, tag="reasoning-delta"):
    """More of the part."""

    id: str
    delta: str


class ReasoningEnd(Chunk, frozen=True, kw_only=True, tag="reasoning-end"):
    """The part has ended."""

    id: str


class ToolInputAvailable(Chunk, frozen=True, kw_only=True, tag="tool-input-available"):
    """A tool is called. `provider_executed`: the server runs it."""

    tool_call_id: str
    tool_name: str
    input: msgspec.Raw
    provider_executed: bool = False


class ToolApprovalRequest(Chunk, frozen=True, kw_only=True, tag="tool-approval-request"):
    """A call waits for an approval."""

    approval_id: str
    tool_call_id: str


class ToolOutputAvailable(Chunk, frozen=True, kw_only=True, tag="tool-output-available"):
    """The result of a call."""

    tool_call_id: str
    output: Any
    provider_executed: bool = False


class ToolOutputError(Chunk, frozen=True, kw_only=True, tag="tool-output-error"):
    """A call failed."""

    tool_call_id: str
    error_text: str
    provider_executed: bool = False


class ToolOutputDenied(Chunk, frozen=True, kw_only=True, tag="tool-output-denied"):
    """A call was not allowed."""

    tool_call_id: str


class MessageMetadata(Chunk, frozen=True, kw_only=True, tag="message-metadata"):
    """The metadata of a message from now on."""

    message_metadata: Metadata


class Finish(Chunk, frozen=True, kw_only=True, tag="finish"):
    """The message is complete, or waits for its client."""

    finish_reason: FinishReason
    message_metadata: Metadata | None = None


class Abort(Chunk, frozen=True, kw_only=True, tag="abort"):
    """The message was stopped."""

    reason: str


class ErrorChunk(Chunk, frozen=True, kw_only=True, tag="error"):
    """The message has no regular end. The text is for people."""

    error_text: str


AnyChunk = (
    Start
    | StartStep
    | FinishStep
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolInputAvailable
    | ToolApprovalRequest
    | ToolOutputAvailable
    | ToolOutputError
    | ToolOutputDenied
    | MessageMetadata
    | Finish
    | Abort
    | ErrorChunk
)
"""Any chunk."""
