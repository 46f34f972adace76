"""Requests of the Responses API, as far as supported (OpenAI; Open Responses). Only types, with its names."""

from __future__ import annotations

import msgspec

from connections.api.chat_request import BaseRequest
from connections.api.fields import null

Metadata = dict[str, str]


class Part(msgspec.Struct, frozen=True):
    """A part of an item's content: a text, an image in a `data:` URL, or an assistant's refusal."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True):
    """An item of the input: a message, a call, its result, reasoning, or a reference to a stored item.

    It may also be the answer to an approval: `approve`, with `approval_request_id`.
    """

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    encrypted_content: str | None = None
    error: msgspec.Raw = msgspec.field(default_factory=null)
    server_label: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None


class ToolNames(msgspec.Struct, frozen=True):
    """Some tools of an MCP server. `read_only`, by the server's own annotations, is not supported."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class Approvals(msgspec.Struct, frozen=True):
    """The tools of an MCP server whose calls need an approval, and those whose calls do not."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class Tool(msgspec.Struct, frozen=True):
    """A function, several in a `namespace`, or tools of an MCP server (`mcp`), that may be called.

    `parameters`: a JSON Schema of an object. `strict` has no effect, as at the chat's endpoint. `server_label`:
    the operator's name of the server; `server_url` is ignored. `authorization`, `headers`: refused, since
    they are not passed on. `tools`: the functions of a namespace.
    """

    type: str
    name: str | None = None
    tools: list[Tool] | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None
    server_label: str | None = None
    server_url: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | ToolNames | None = None
    require_approval: str | Approvals | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    connector_id: str | None = None


class NamedTool(msgspec.Struct, frozen=True):
    """Names a function, or a tool of an MCP server."""

    name: str = ""
    namespace: str | None = None
    type: str = "function"
    server_label: str | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """The tool to call, or the tools that may be called, and whether one must be."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str = "auto"
    tools: list[NamedTool] | None = None
    server_label: str | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """The format of a reply: `text`, `json_object` or `json_schema`. A reply always follows its schema."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """Options of the reply's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """How much the model reasons. All of its reasoning is sent, so there is no `summary`."""

    effort: str | None = None
    summary: str | None = None


class ConversationName(msgspec.Struct, frozen=True):
    """Names a conversation."""

    id: str


class ConversationFields(msgspec.Struct, frozen=True):
    """What a conversation begins with, or gets: the body of requests to `/v1/conversations`."""

    items: list[Item] | None = None
    metadata: Metadata | None = None


class Creation(BaseRequest, frozen=True, kw_only=True):
    """Asks for a response: the body of `POST /v1/responses`, and the fields of `response.create` on its WebSocket."""

    input: str | list[Item] = ""
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: str | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    service_tier: str | None = None
