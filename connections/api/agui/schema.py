"""The fields of a run's request with an effect here, and the events of a run (AG-UI 1.0). Only types, with the protocol's names.

`state` is left out: no model reads it, and nothing here changes it. It stays as the client has it.
"""

from __future__ import annotations

import msgspec

from connections.api.chat_requests import MessageCall
from connections.api.fields import null
from connections.api.replies import FinishReason


class Source(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a part: in base64 (`data`), or at a URL (`url`), which may contain it."""

    type: str = ""
    value: str = ""
    mime_type: str = ""


class RunPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a message. `source`: of an image, sound, video or document; `binary`, which is older, has none."""

    type: str
    text: str | None = None
    source: Source | None = None
    mime_type: str = ""
    data: str | None = None
    url: str | None = None

    @property
    def image_url(self) -> str | None:
        """The image's URL; None if it is not an image."""
        match self:
            case RunPart(type="image", source=Source(type="data", value=value, mime_type=kind)):
                return f"data:{kind};base64,{value}"
            case RunPart(type="image", source=Source(type="url", value=value)):
                return value
            case RunPart(type="binary", mime_type=kind) if kind.startswith("image/"):
                return self.url if self.data is None else f"data:{kind};base64,{self.data}"
        return None


class RunMessage(msgspec.Struct, frozen=True, rename="camel"):
    """A message of any role. `error`: why a tool failed."""

    role: str
    id: str = ""
    content: msgspec.Raw = msgspec.field(default_factory=null)
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    error: str | None = None


class RunTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `parameters`: a JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)


class RunContext(msgspec.Struct, frozen=True):
    """Information for the model besides the conversation."""

    description: str
    value: str


class ForwardedProps(msgspec.Struct, frozen=True):
    """The client's own fields that have an effect here: which model answers, and how. They have OpenAI's names."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None


class ThreadProps(msgspec.Struct, frozen=True):
    """One more field: the server tools that a run may call, `*` for all. Then its thread is kept here."""

    server_tools: list[str] | None = None


class ResumeEntry(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to an interrupt. `payload`: its content, if it is `resolved`."""

    interrupt_id: str
    status: str = "resolved"
    payload: msgspec.Raw = msgspec.field(default_factory=null)


class Payload(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a call may run. `edited_args`: other arguments to run with, an object."""

    approved: bool
    edited_args: dict[str, msgspec.Raw] | None = None


_props = msgspec.json.Decoder(ForwardedProps).decode
_thread_props = msgspec.json.Decoder(ThreadProps).decode


class RunInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A request of `POST /v1/ag-ui`. `forwarded_props`: any JSON; `resume` answers the interrupts of the last run.

    `protocol_version`: from AG-UI 1.0 on; clients before it refuse events with fields that they do not know.
    """

    thread_id: str
    run_id: str
    messages: list[RunMessage]
    tools: list[RunTool] | None = None
    context: list[RunContext] | None = None
    forwarded_props: msgspec.Raw = msgspec.field(default_factory=null)
    resume: list[ResumeEntry] | None = None
    protocol_version: str | None = None

    @property
    def props(self) -> ForwardedProps:
        """The fields of `forwarded_props` that have an effect here. Raises msgspec.ValidationError."""
        is_object = bytes(self.forwarded_props).startswith(b"{")
        return _props(self.forwarded_props) if is_object else ForwardedProps()

    @property
    def server_tools(self) -> list[str] | None:
        """The server tools that it may call; None if it names none. Raises msgspec.ValidationError."""
        is_object = bytes(self.forwarded_props).startswith(b"{")
        return _thread_props(self.forwarded_props).server_tools if is_object else None

    @property
    def model(self) -> str | None:
        """The requested model; None: the default."""
        return self.props.model


Content = str | list[RunPart] | None


VERSION = "1.0"


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
