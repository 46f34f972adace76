"""The tools of a request: which may be called, and which must be. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from connections.api.chat_parser import MAX_TOOLS
from connections.api.errors import invalid
from connections.api.fields import schema_text
from connections.protocol.errors import field_message
from connections.responses.requests.mcp_servers import McpServer
from connections.responses.requests.models import Creation, Tool, ToolChoice
from engine import reply_spec
from engine.reply_spec import ReplySpec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ANYTHING = '{"type":"object","properties":{}}'

Tools = tuple[reply_spec.Tool, ...]


def tools_spec(request: Creation, servers: Sequence[McpServer] = ()) -> ReplySpec:
    """Return the tools, and how to choose among them. `servers`: the MCP servers among them. Raises Problem."""
    spec = _tool_choice(request.tool_choice, tools_of(request.tools or [], servers))
    if not spec.tools and spec.tool_choice in ("required", "named"):
        raise invalid("tool_choice", field_message("tool_choice", "needs `tools` to choose from."))
    if not spec.tools:
        return ReplySpec()
    return ReplySpec(
        tools=spec.tools,
        tool_choice=spec.tool_choice,
        tool_name=spec.tool_name,
        parallel_calls=request.parallel_tool_calls is not False,
    )


def tools_of(given: Sequence[Tool], servers: Sequence[McpServer] = ()) -> Tools:
    """Return the functions, and after them the tools of servers. Raises Problem."""
    if len(given) > MAX_TOOLS:
        raise invalid("tools", field_message("tools", f"may have at most {MAX_TOOLS} tools."))
    tools: dict[str, reply_spec.Tool] = {}
    for where, namespace, one in _functions(given):
        tool = _tool(one, namespace, where)
        if tool.name in tools:
            raise invalid(
                f"{where}.name", field_message(f"{where}.name", "is the name of another tool, too.")
            )
        tools[tool.name] = tool
    for server in servers:
        for offered in server.offered:
            if offered.tool.name in tools:
                raise invalid("tools", f'Two of `tools` have the name "{offered.tool.name}".')
            tools[offered.tool.name] = offered.tool
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", field_message("tools", f"may have at most {MAX_TOOLS} tools."))
    return tuple(tools.values())


def ignored_tools(given: Sequence[Tool] | None) -> tuple[str, ...]:
    """Return the places of tools that only OpenAI's servers run, as many as a request may have tools."""
    return tuple(where for where, _, tool in _flattened(given or ()) if tool.type not in ("function", "mcp"))[
        :MAX_TOOLS
    ]


def namespaces_of(given: Sequence[Tool] | None) -> dict[str, str]:
    """Return the namespaces of functions, by the names that the model sees."""
    functions = _functions(given or ())
    return {joined_name(space, tool.name): space for _, space, tool in functions if space}


def joined_name(namespace: str | None, name: str | None) -> str:
    """Return the name of a function as the model sees it: two namespaces may have functions of the same name."""
    return f"{namespace}__{name}" if namespace else name or ""


def _functions(given: Sequence[Tool]) -> Iterator[tuple[str, str | None, Tool]]:
    """Yield the functions, each with its place and its namespace."""
    return (found for found in _flattened(given) if found[2].type == "function")


def _flattened(given: Sequence[Tool]) -> Iterator[tuple[str, str | None, Tool]]:
    """Yield all tools, with those in a namespace in its place."""
    for number, tool in enumerate(given):
        if tool.type != "namespace":
            yield f"tools[{number}]", None, tool
            continue
        for place, one in enumerate(tool.tools or ()):
            yield f"tools[{number}].tools[{place}]", tool.name or "", one


def _tool(tool: Tool, namespace: str | None, where: str) -> reply_spec.Tool:
    name = joined_name(namespace, tool.name)
    if namespace is not None and not _NAME.match(name):
        why = "must have letters, digits, _ or -, and with its namespace and __ between them 64 at most."
        raise invalid(f"{where}.name", field_message(f"{where}.name", why))
    if not _NAME.match(tool.name or ""):
        raise invalid(
            f"{where}.name", field_message(f"{where}.name", "must have 1 to 64 letters, digits, _ or -.")
        )
    parameters = schema_text(tool.parameters, f"{where}.parameters")
    return reply_spec.Tool(name, tool.description or "", parameters or _ANYTHING)


def _tool_choice(given: str | ToolChoice | None, tools: Tools) -> ReplySpec:
    match given:
        case None:
            return ReplySpec(tools)
        case "auto" | "none" | "required":
            return ReplySpec(tools, tool_choice=given)
        case ToolChoice(type="function" | "mcp", name=str() as called):
            name = joined_name(given.namespace, called)
            _check_known(name, tools, "tool_choice.name")
            return ReplySpec(tools, tool_choice="named", tool_name=name)
        case ToolChoice(type="allowed_tools", tools=list()):
            return _allowed(given, tools)
        case _:
            why = "must be auto, none, required, or name one of `tools`."
            raise invalid("tool_choice", field_message("tool_choice", why))


def _allowed(given: ToolChoice, tools: Tools) -> ReplySpec:
    """Show the model only the tools that it may call."""
    if given.mode not in ("auto", "required", "none"):
        raise invalid(
            "tool_choice.mode", field_message("tool_choice.mode", "must be auto, required or none.")
        )
    named = []
    for number, one in enumerate(given.tools or ()):
        if one.type in ("function", "mcp"):  # others were left out
            named.append(name := joined_name(one.namespace, one.name))
            _check_known(name, tools, f"tool_choice.tools[{number}].name")
    modes: dict[str, Literal["auto", "required", "none"]] = {"required": "required", "none": "none"}
    return ReplySpec(
        tuple(tool for tool in tools if tool.name in named), tool_choice=modes.get(given.mode, "auto")
    )


def _check_known(name: str, tools: Tools, where: str) -> None:
    if all(tool.name != name for tool in tools):
        raise invalid(where, field_message(where, "names none of `tools`."))
