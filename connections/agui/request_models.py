"""The fields of a run's request with an effect here (AG-UI 1.0: RunAgentInput). Only types, with the protocol's names.

`state` is left out: no model reads it, and nothing here changes it. It stays as the client has it.
"""

from __future__ import annotations

import msgspec

from connections.api.chat_request import MessageCall, null


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
