"""The server tools of a request: those of the operator's MCP servers, by the names in the server file. Pure.

No URL of a request is used. The operator's functions are tools of the server `midstream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from connections.api.errors import Problem, invalid
from connections.protocol.errors import field_message
from connections.responses.requests.models import Approvals, Tool, ToolNames
from sessions.tools.server_tool import Approval, ServerTool
from sessions.tools.tool_registry import ToolRegistry
from sessions.turn.message_request import OfferedTool

OPERATOR_FUNCTIONS = "midstream"
"""The label of the operator's own functions."""
_NOT_FORWARDED = "is not passed on: the operator says how this server reaches its MCP servers. Leave it out."
_UNREACHABLE = "The server is away: its tools are offered again when it is back."


class McpServer(msgspec.Struct, frozen=True):
    """The tools of one server that a request may call. `error`: why there are none now."""

    label: str
    tools: tuple[ServerTool, ...]
    offered: tuple[OfferedTool, ...]
    error: str | None = None


def label_of(tool: ServerTool) -> str:
    """Return the label of a tool's server."""
    return tool.server or OPERATOR_FUNCTIONS


def mcp_servers(given: Sequence[Tool], box: ToolRegistry) -> tuple[McpServer, ...]:
    """Return the servers of a request. Raises Problem."""
    found = tuple(
        _mcp_server(tool, f"tools[{number}]", box) for number, tool in enumerate(given) if tool.type == "mcp"
    )
    labels = [one.label for one in found]
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise invalid("tools", f'`tools` may name the server "{label[:64]}" once.')
    return found


def _mcp_server(tool: Tool, where: str, box: ToolRegistry) -> McpServer:
    for field in ("authorization", "headers", "connector_id"):
        if getattr(tool, field):
            place = f"{where}.{field}"
            raise invalid(place, field_message(place, _NOT_FORWARDED), code="unsupported_parameter")
    label = tool.server_label or ""
    found = box.of_server("" if label == OPERATOR_FUNCTIONS else label) if label else None
    if found is None:
        raise _unknown(label, f"{where}.server_label", box)
    if not found:
        return McpServer(label, (), (), _UNREACHABLE)
    is_allowed = _tool_filter(tool.allowed_tools, f"{where}.allowed_tools", found)
    tools = tuple(one for one in found if is_allowed is None or is_allowed(one))
    wants_approval = _approval_rule(tool.require_approval, f"{where}.require_approval", found)
    return McpServer(
        label, tools, tuple(_offered_tool(one, wants_approval=wants_approval(one)) for one in tools)
    )


def _offered_tool(tool: ServerTool, *, wants_approval: bool) -> OfferedTool:
    """Return an offered tool. If the operator requires approval, no request can change that."""
    needs = wants_approval or tool.approval is Approval.ALWAYS
    return OfferedTool(tool=tool.shown, where="server", needs="approval" if needs else "none")


def _approval_rule(
    given: str | Approvals | None, where: str, found: Sequence[ServerTool]
) -> Callable[[ServerTool], bool]:
    """Return whether a request wants approvals for a tool; by default for all of them. Raises Problem."""
    match given:
        case None | "always":
            return lambda _: True
        case "never":
            return lambda _: False
        case Approvals(always=always, never=never):
            is_always = _tool_filter(always, f"{where}.always", found)
            is_never = _tool_filter(never, f"{where}.never", found)
            return lambda tool: not (is_never and is_never(tool)) or bool(is_always and is_always(tool))
        case _:
            raise invalid(
                where, field_message(where, "must be always, never, or name tools by `always` and `never`.")
            )


def _tool_filter(
    given: list[str] | ToolNames | None, where: str, found: Sequence[ServerTool]
) -> Callable[[ServerTool], bool] | None:
    """Return whether a list names a tool, by its name here or at its server; None without a list. Raises Problem."""
    if isinstance(given, ToolNames):
        if given.read_only is not None:
            place = f"{where}.read_only"
            raise invalid(
                place, field_message(place, "is not served: name the tools."), code="unsupported_parameter"
            )
        given, where = given.tool_names, f"{where}.tool_names"
    if given is None:
        return None
    names = set(given)
    for number, name in enumerate(given):
        if not any(name in _names(tool) for tool in found):
            place = f"{where}[{number}]"
            raise invalid(
                place, field_message(place, f"names no tool of the server: it has {_some_names(found)}.")
            )
    return lambda tool: not names.isdisjoint(_names(tool))


def _names(tool: ServerTool) -> tuple[str, ...]:
    return (tool.name, tool.named_there) if tool.named_there else (tool.name,)


def _some_names(found: Sequence[ServerTool]) -> str:
    names = [tool.name for tool in found]
    return ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])])  # noqa: PLR2004 - a sentence is short


def _unknown(label: str, where: str, box: ToolRegistry) -> Problem:
    has = ", ".join(_labels(box)) or "none"
    why = (
        f'This server uses no MCP server that a request brings: its operator lists them, and "{label[:64]}" is none of '
        f"them, or was not reached so far. There are: {has}."
    )
    return invalid(where, why, code="unsupported_parameter")


def _labels(box: ToolRegistry) -> Iterator[str]:
    yield from box.servers
    if box.of_server(""):
        yield OPERATOR_FUNCTIONS
