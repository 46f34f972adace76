"""Requests of the Responses API as far as they are served (OpenAI's API reference; Open Responses). Only types; fields are named as they are there."""

from __future__ import annotations

import msgspec

from connections.openai.requests.fields import Asked, null

Metadata = dict[str, str]


class Part(msgspec.Struct, frozen=True):
    """A part of an item's content: a text, an image in a `data:` URL, or what an assistant refused to say."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True):
    """What the model is to read: a message, a call, what came of one, what was thought, or a reference to a stored item.

    Or what is said to a call that has to be allowed: `approve`, by `approval_request_id`.
    """

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    encrypted_content: str | None = None
    error: msgspec.Raw = msgspec.field(default_factory=null)
    server_label: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None


class ToolNames(msgspec.Struct, frozen=True):
    """Some tools of an MCP server. `read_only`, by what the server says of them, is not served."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class Approvals(msgspec.Struct, frozen=True):
    """The tools of an MCP server whose calls have to be allowed, and need not."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class Tool(msgspec.Struct, frozen=True):
    """What may be called: a function, or tools of an MCP server (`mcp`).

    `parameters`: a JSON Schema of an object. `strict` changes nothing, as at the chat's door. `server_label`: what the
    operator calls the server; `server_url` is not looked at. `authorization`, `headers`: not passed on, so refused.
    """

    type: str
    name: str | None = None
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
    type: str = "function"
    server_label: str | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """The one tool to call, or the tools that may be called, and whether one has to be."""

    type: str
    name: str | None = None
    mode: str = "auto"
    tools: list[NamedTool] | None = None
    server_label: str | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """What a reply has to be: `text`, `json_object` or `json_schema`. A reply always keeps to its schema."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """How the text of a reply is written."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """How much is thought. What is thought is told whole, so there is no `summary` of it."""

    effort: str | None = None
    summary: str | None = None


class ConversationName(msgspec.Struct, frozen=True):
    """Names a conversation."""

    id: str


class Creation(Asked, frozen=True, kw_only=True):
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
    safety_identifier: str | None = None
    user: str | None = None
