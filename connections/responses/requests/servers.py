"""The server tools of a request: those of the operator's MCP servers, by the names in the server file. Pure.

No URL of a request is used. The operator's functions are tools of the server `midstream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from connections.openai.problems import Problem, invalid
from connections.responses.requests.fields import Approvals, Tool, ToolNames
from connections.wire.sentences import worded
from sessions.tools.server_tool import Approval, ServerTool
from sessions.tools.tool_box import ToolBox
from sessions.turn.sends import OfferedTool

FUNCTIONS = "midstream"
"""The label of the operator's own functions."""
_PASSED_ON = "is not passed on: the operator says how this server reaches its MCP servers. Leave it out."
_AWAY = "The server is away: its tools are offered again when it is back."


class Listed(msgspec.Struct, frozen=True):
    """The tools of one server that a request may call. `error`: why there are none now."""

    label: str
    tools: tuple[ServerTool, ...]
    offered: tuple[OfferedTool, ...]
    error: str | None = None


def label_of(tool: ServerTool) -> str:
    """Return the label of a tool's server."""
    return tool.server or FUNCTIONS


def listed(given: Sequence[Tool], box: ToolBox) -> tuple[Listed, ...]:
    """Return the servers of a request. Raises Problem."""
    found = tuple(
        _listed(tool, f"tools[{number}]", box) for number, tool in enumerate(given) if tool.type == "mcp"
    )
    labels = [one.label for one in found]
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise invalid("tools", f'`tools` may name the server "{label[:64]}" once.')
    return found


def _listed(tool: Tool, where: str, box: ToolBox) -> Listed:
    for field in ("authorization", "headers", "connector_id"):
        if getattr(tool, field):
            place = f"{where}.{field}"
            raise invalid(place, worded(place, _PASSED_ON), code="unsupported_parameter")
    label = tool.server_label or ""
    found = box.of_server("" if label == FUNCTIONS else label) if label else None
    if found is None:
        raise _unknown(label, f"{where}.server_label", box)
    if not found:
        return Listed(label, (), (), _AWAY)
    is_allowed = _named_by(tool.allowed_tools, f"{where}.allowed_tools", found)
    tools = tuple(one for one in found if is_allowed is None or is_allowed(one))
    asks = _asking(tool.require_approval, f"{where}.require_approval", found)
    return Listed(label, tools, tuple(_offered(one, asks=asks(one)) for one in tools))


def _offered(tool: ServerTool, *, asks: bool) -> OfferedTool:
    """Return an offered tool. If the operator requires approval, no request can change that."""
    needs = asks or tool.approval is Approval.ALWAYS
    return OfferedTool(tool=tool.shown, where="server", needs="approval" if needs else "none")


def _asking(
    given: str | Approvals | None, where: str, found: Sequence[ServerTool]
) -> Callable[[ServerTool], bool]:
    """Return whether a request wants approvals for a tool; by default for all of them. Raises Problem."""
    match given:
        case None | "always":
            return lambda _: True
        case "never":
            return lambda _: False
        case Approvals(always=always, never=never):
            is_always = _named_by(always, f"{where}.always", found)
            is_never = _named_by(never, f"{where}.never", found)
            return lambda tool: not (is_never and is_never(tool)) or bool(is_always and is_always(tool))
        case _:
            raise invalid(
                where, worded(where, "must be always, never, or name tools by `always` and `never`.")
            )


def _named_by(
    given: list[str] | ToolNames | None, where: str, found: Sequence[ServerTool]
) -> Callable[[ServerTool], bool] | None:
    """Return whether a list names a tool, by its name here or at its server; None without a list. Raises Problem."""
    if isinstance(given, ToolNames):
        if given.read_only is not None:
            place = f"{where}.read_only"
            raise invalid(
                place, worded(place, "is not served: name the tools."), code="unsupported_parameter"
            )
        given, where = given.tool_names, f"{where}.tool_names"
    if given is None:
        return None
    names = set(given)
    for number, name in enumerate(given):
        if not any(name in _names(tool) for tool in found):
            place = f"{where}[{number}]"
            raise invalid(place, worded(place, f"names no tool of the server: it has {_some(found)}."))
    return lambda tool: not names.isdisjoint(_names(tool))


def _names(tool: ServerTool) -> tuple[str, ...]:
    return (tool.name, tool.named_there) if tool.named_there else (tool.name,)


def _some(found: Sequence[ServerTool]) -> str:
    names = [tool.name for tool in found]
    return ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])])  # noqa: PLR2004 - a sentence is short


def _unknown(label: str, where: str, box: ToolBox) -> Problem:
    has = ", ".join(_labels(box)) or "none"
    why = (
        f'This server uses no MCP server that a request brings: its operator lists them, and "{label[:64]}" is none of '
        f"them, or was not reached so far. There are: {has}."
    )
    return invalid(where, why, code="unsupported_parameter")


def _labels(box: ToolBox) -> Iterator[str]:
    yield from box.servers
    if box.of_server(""):
        yield FUNCTIONS
