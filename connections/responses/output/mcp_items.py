"""Items of server tools: their ids and contents. Pure.

A call's items contain its id, so a client that returns them names the call. An approval's id contains the hash of the
arguments, too: only the arguments that were shown can run.
"""

from __future__ import annotations

import msgspec

from connections.api.stored_replies import ServerToolCall
from connections.responses.output.mcp_wire import (
    ListedTool,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    McpStatus,
    ToolError,
)
from connections.responses.output.wire import FunctionCall
from connections.responses.requests.mcp_servers import McpServer
from engine.messages import ToolCall
from sessions.tools.server_tool import ServerTool


class ToolLabels(msgspec.Struct, frozen=True):
    """Maps tools to the labels of their servers, and functions to their namespaces."""

    by_tool: dict[str, str] = {}
    namespaces: dict[str, str] = {}

    def of(self, tool: str) -> str:
        """Return the label of a tool's server; that of no server if it is unknown by now."""
        return self.by_tool.get(tool, "")

    def call(self, call: ToolCall, item_id: str) -> FunctionCall:
        """Return the item of a function's call, under the namespace in which the client has it."""
        space = self.namespaces.get(call.name)
        return FunctionCall(
            id=item_id,
            status="completed",
            call_id=call.call_id,
            name=call.name.removeprefix(f"{space}__") if space else call.name,
            namespace=space or msgspec.UNSET,
            arguments=call.arguments,
        )


def list_tools_item(listed: McpServer, item_id: str) -> McpListTools:
    """Return the item of a server's tools."""
    tools = tuple(map(_listed_tool, listed.tools))
    return McpListTools(id=item_id, server_label=listed.label, tools=tools, error=listed.error)


def _listed_tool(tool: ServerTool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        description=tool.description or None,
        input_schema=msgspec.Raw(tool.parameters.encode()),
    )


def call_item_id(call_id: str, name: str) -> str:
    """Return the id of a call's item. `name`: the common part of the ids of its response."""
    return f"mcp_{name}_{call_id.encode().hex()}"


def approval_id(call: ServerToolCall, name: str) -> str:
    """Return the id of an approval."""
    return f"mcpr_{name}_{call.call_id.encode().hex()}-{call.args_sha256}"


def approval_item(call: ServerToolCall, name: str, labels: ToolLabels) -> McpApprovalRequest:
    """Return the item of a call that waits for an approval."""
    return McpApprovalRequest(
        id=approval_id(call, name), server_label=labels.of(call.name), name=call.name, arguments=call.args
    )


def call_item(
    call: ServerToolCall,
    name: str,
    labels: ToolLabels,
    *,
    approval_request_id: str | None = None,
    is_cut: bool = False,
) -> McpCall:
    """Return the item of a call. `approval_request_id`: the id of its approval; `is_cut`: it does not change any more."""
    settled = call.state.is_settled
    status: McpStatus = "incomplete" if is_cut else "in_progress"
    if settled:
        status = "failed" if call.failed else "completed"
    return McpCall(
        id=call_item_id(call.call_id, name),
        status=status,
        server_label=labels.of(call.name),
        name=call.name,
        arguments=call.args,
        approval_request_id=approval_request_id,
        output=call.output if settled and not call.failed else None,
        error=ToolError.of(call.output) if settled and call.failed else None,
    )
