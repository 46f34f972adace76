"""Items and events of server tools in the Responses API (OpenAI's API reference: MCP). Only types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from connections.responses.output.event import Event

McpStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class McpTool(msgspec.Struct, frozen=True, kw_only=True, tag="mcp"):
    """An MCP server whose tools the reply may call, as requested."""

    server_label: str
    server_description: str | None = None
    server_url: str | None = None
    allowed_tools: Any = None
    require_approval: Any = "always"
    headers: None = None


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server."""

    name: str
    description: str | None
    input_schema: msgspec.Raw
    annotations: None = None


class McpListTools(msgspec.Struct, frozen=True, kw_only=True, tag="mcp_list_tools"):
    """The tools of a server that the reply may call. `error`: why there are none."""

    id: str
    server_label: str
    tools: tuple[ListedTool, ...] = ()
    error: str | None = None


class McpApprovalRequest(msgspec.Struct, frozen=True, kw_only=True, tag="mcp_approval_request"):
    """A call that waits for an approval. Its id stands for these arguments."""

    id: str
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(msgspec.Struct, frozen=True, kw_only=True, tag="mcp_approval_response"):
    """The stored answer to an approval."""

    id: str
    approval_request_id: str
    approve: bool
    reason: None = None


class ToolError(msgspec.Struct, frozen=True, tag="mcp_tool_execution_error"):
    """The outcome of a failed call, as the model reads it."""

    content: tuple[dict[str, str], ...]

    @classmethod
    def of(cls, text: str) -> ToolError:
        """Make one from a text."""
        return cls(({"type": "text", "text": text},))


class McpCall(msgspec.Struct, frozen=True, kw_only=True, tag="mcp_call"):
    """A call that the server runs. `approval_request_id`: of its approval, whether it was allowed or denied."""

    id: str
    status: McpStatus
    server_label: str
    name: str
    arguments: str
    approval_request_id: str | None = None
    output: str | None = None
    error: ToolError | None = None


McpItem = McpListTools | McpApprovalRequest | McpCall


class McpItemEvent(Event, frozen=True, kw_only=True):
    """The root of events about a server's tools, or a call of one."""

    item_id: str
    output_index: int


class McpListToolsInProgress(
    McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.in_progress"
):
    """The tools of a server are being listed."""


class McpListToolsCompleted(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.completed"):
    """The tools were listed."""


class McpListToolsFailed(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_list_tools.failed"):
    """The server has no tools now."""


class McpCallInProgress(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.in_progress"):
    """A call is running."""


class McpCallArgumentsDelta(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """The arguments of a call, which come in one piece."""

    delta: str


class McpCallArgumentsDone(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"):
    """The arguments of a call are complete."""

    arguments: str


class McpCallCompleted(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.completed"):
    """The call has a result."""


class McpCallFailed(McpItemEvent, frozen=True, kw_only=True, tag="response.mcp_call.failed"):
    """The call has failed."""
