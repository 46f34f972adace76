"""Anthropic's requests, as far as supported (API reference: Messages, Count tokens). Only types, with its names."""

from __future__ import annotations

import msgspec


def null() -> msgspec.Raw:
    """Return the value of a missing field. A function, since msgspec's schemas support no such default."""
    return msgspec.Raw(b"null")


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
