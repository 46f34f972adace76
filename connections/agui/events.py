"""The events of a run that are sent (AG-UI 1.0). Only types, with the protocol's names."""

from __future__ import annotations

from typing import Literal

import msgspec

VERSION = "1.0"
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class RunEvent(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"
):
    """The root of all events."""


class RunStarted(RunEvent, frozen=True, kw_only=True, tag="RUN_STARTED"):
    """A run begins."""

    thread_id: str
    run_id: str
    protocol_version: str


class TextStart(RunEvent, frozen=True, kw_only=True, tag="TEXT_MESSAGE_START"):
    """A message begins."""

    message_id: str
    role: str


class TextContent(RunEvent, frozen=True, kw_only=True, tag="TEXT_MESSAGE_CONTENT"):
    """More of a message."""

    message_id: str
    delta: str


class TextEnd(RunEvent, frozen=True, kw_only=True, tag="TEXT_MESSAGE_END"):
    """A message is complete."""

    message_id: str


class ReasoningStart(RunEvent, frozen=True, kw_only=True, tag="REASONING_START"):
    """The model begins to reason."""

    message_id: str


class ReasoningMessageStart(RunEvent, frozen=True, kw_only=True, tag="REASONING_MESSAGE_START"):
    """A stretch of reasoning begins."""

    message_id: str
    role: str


class ReasoningContent(RunEvent, frozen=True, kw_only=True, tag="REASONING_MESSAGE_CONTENT"):
    """More reasoning."""

    message_id: str
    delta: str


class ReasoningMessageEnd(RunEvent, frozen=True, kw_only=True, tag="REASONING_MESSAGE_END"):
    """A stretch of reasoning is complete."""

    message_id: str


class ReasoningEnd(RunEvent, frozen=True, kw_only=True, tag="REASONING_END"):
    """The model has ended its reasoning."""

    message_id: str


class CallStart(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_START"):
    """A call begins. `parent_message_id`: the message that it belongs to."""

    tool_call_id: str
    tool_call_name: str
    parent_message_id: str


class CallArgs(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_ARGS"):
    """The text of a call's arguments."""

    tool_call_id: str
    delta: str


class CallEnd(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_END"):
    """A call is complete."""

    tool_call_id: str


class CallResult(RunEvent, frozen=True, kw_only=True, tag="TOOL_CALL_RESULT"):
    """The outcome of a server tool's call: a message of its own."""

    message_id: str
    tool_call_id: str
    content: str
    role: str


class Interrupt(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A call that waits for an approval. `expires_at`: ISO 8601."""

    id: str
    reason: str
    message: str
    tool_call_id: str
    response_schema: msgspec.Raw
    expires_at: str | None = None


class Interrupted(msgspec.Struct, frozen=True, kw_only=True, tag="interrupt"):
    """A run ended with interrupts. The next one answers all of them."""

    interrupts: tuple[Interrupt, ...]


class Success(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag="success"):
    """A run is done. `pending_tool_call_ids`: the client runs these, and sends their results with its next run."""

    pending_tool_call_ids: tuple[str, ...] = ()


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """A run was ended before the model was done: by a limit of length or time, or by a filter."""


class RunUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens of a run. Cached tokens are a part of the prompt, reasoning tokens a part of the reply."""

    model: str
    input_tokens: int
    output_tokens: int
    total_tokens: int
    reasoning_tokens: int
    cached_input_tokens: int


class Ended(msgspec.Struct, frozen=True, rename="camel"):
    """Why the reply ended, besides the protocol's own fields."""

    finish_reason: FinishReason


class RunFinished(RunEvent, frozen=True, kw_only=True, tag="RUN_FINISHED"):
    """A run is done."""

    thread_id: str
    run_id: str
    outcome: Success | Interrupted | Cancelled | None = None
    usage: tuple[RunUsage, ...]
    metadata: Ended


class RunError(RunEvent, frozen=True, kw_only=True, tag="RUN_ERROR"):
    """A run failed, or was refused. `message` is for people, `code` for programs."""

    message: str
    code: str
    usage: tuple[RunUsage, ...] = ()
