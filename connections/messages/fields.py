"""Anthropic's requests as far as they are served (API reference: Messages, Count tokens). Only types; fields are named as they are there."""

from __future__ import annotations

import msgspec


def null() -> msgspec.Raw:
    """What stands for a field that is not there. A function, since msgspec describes no default of this kind in a schema."""
    return msgspec.Raw(b"null")


class ResultBlock(msgspec.Struct, frozen=True):
    """A part of what a tool returned."""

    type: str
    text: str | None = None


class Source(msgspec.Struct, frozen=True):
    """Where an image is, or a document: `base64`, `url`, or another."""

    type: str
    media_type: str = ""
    data: str | None = None
    url: str | None = None


class InputBlock(msgspec.Struct, frozen=True):
    """A part of a message: `text`, `image`, `thinking`, `tool_use`, `tool_result`, or what is refused by its type."""

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


class InputMessage(msgspec.Struct, frozen=True):
    """A message of a request."""

    role: str
    content: str | list[InputBlock]


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `input_schema`: a JSON Schema of an object. Others' tools have another `type`."""

    name: str = ""
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None
    type: str | None = None


class ToolUseChoice(msgspec.Struct, frozen=True):
    """`auto`, `any`, `tool` (the one that is named) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    """`enabled`, `disabled` or `adaptive`. `display`: `omitted` has no thoughts told."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """A JSON Schema that the reply keeps to."""

    type: str
    schema: msgspec.Raw = msgspec.field(default_factory=null)


class OutputConfig(msgspec.Struct, frozen=True):
    """What the reply has to be, and how much effort goes into it."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `POST /v1/messages/count_tokens`: all that a prompt is made of.

    `cache_control`, wherever it stands, changes nothing: prompts are kept by themselves.
    """

    model: str
    messages: list[InputMessage]
    system: str | list[ResultBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolUseChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


class MessageRequest(CountRequest, frozen=True, kw_only=True):
    """A request of `POST /v1/messages`. `metadata` and `service_tier` change nothing here."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @property
    def shows_thoughts(self) -> bool:
        """Whether what is thought is told."""
        return self.thinking is None or self.thinking.display != "omitted"
