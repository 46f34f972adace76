"""The tools of a request: which may be called, and which must be. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from connections.openai.problems import Problem, invalid
from connections.openai.requests.json_schemas import schema_text
from connections.openai.requests.models import (
    AllowedTools,
    ChatRequest,
    Function,
    FunctionTool,
    NamedTool,
    ToolChoice,
)
from connections.protocol.errors import field_message
from engine.reply_spec import ReplySpec, Tool

MAX_TOOLS = 128
_FUNCTION = "function"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ANY_OBJECT = '{"type":"object","properties":{}}'
_MODES = ("auto", "none", "required")


class _Choice(msgspec.Struct, frozen=True):
    """The tools that the model sees, and what it should do with them."""

    tools: tuple[Tool, ...]
    mode: Literal["auto", "none", "required", "named"]
    name: str = ""


def tools_spec(request: ChatRequest) -> ReplySpec:
    """Return the tools of a request, and how to choose among them. Raises Problem."""
    tools = _tools(request.tools or [])
    choice = _choice(request.tool_choice, tools)
    if not choice.tools and choice.mode in ("required", "named"):
        raise invalid("tool_choice", field_message("tool_choice", "needs `tools` to choose from."))
    if not choice.tools:
        return ReplySpec()
    return ReplySpec(
        tools=choice.tools,
        tool_choice=choice.mode,
        tool_name=choice.name,
        parallel_calls=request.parallel_tool_calls is not False,
    )


def _tools(given: Sequence[FunctionTool]) -> tuple[Tool, ...]:
    if len(given) > MAX_TOOLS:
        raise invalid("tools", field_message("tools", f"may have at most {MAX_TOOLS} tools."))
    tools: dict[str, Tool] = {}
    for number, one in enumerate(given):
        if one.type != _FUNCTION:
            continue
        tool = _tool(one, f"tools[{number}]")
        if tool.name in tools:
            where = f"tools[{number}].function.name"
            raise invalid(where, field_message(where, "is the name of another tool, too."))
        tools[tool.name] = tool
    return tuple(tools.values())


def ignored_tools(given: Sequence[FunctionTool] | None) -> tuple[str, ...]:
    """Return the places of tools that are not functions: only their client's own server runs them."""
    return tuple(f"tools[{number}]" for number, tool in enumerate(given or ()) if tool.type != _FUNCTION)


def _tool(tool: FunctionTool, where: str) -> Tool:
    if tool.function is None:
        raise invalid(f"{where}.function", field_message(f"{where}.function", "is missing."))
    return _function(tool.function, f"{where}.function")


def _function(function: Function, where: str) -> Tool:
    if not _NAME.match(function.name):
        why = "must have 1 to 64 letters, digits, _ or -."
        raise invalid(f"{where}.name", field_message(f"{where}.name", why))
    parameters = schema_text(function.parameters, f"{where}.parameters")
    return Tool(function.name, function.description or "", parameters or _ANY_OBJECT)


def _choice(given: str | ToolChoice | None, tools: tuple[Tool, ...]) -> _Choice:
    match given:
        case None:
            return _Choice(tools, "auto")
        case "auto" | "none" | "required":
            return _Choice(tools, given)
        case ToolChoice(type="allowed_tools", allowed_tools=AllowedTools() as allowed):
            return _allowed(allowed, tools)
        case ToolChoice(type="function", function=named) if named is not None:
            where = "tool_choice.function.name"
            return _Choice(tools, "named", _known(named.name, tools, where))
        case _:
            why = "must be auto, none, required, or a function of `tools`."
            raise invalid("tool_choice", field_message("tool_choice", why))


def _allowed(allowed: AllowedTools, tools: tuple[Tool, ...]) -> _Choice:
    where = "tool_choice.allowed_tools"
    if allowed.mode not in ("auto", "required"):
        raise invalid(f"{where}.mode", field_message(f"{where}.mode", "must be auto or required."))
    names = {_of(one, number, tools) for number, one in enumerate(allowed.tools)}
    mode: Literal["auto", "required"] = "required" if allowed.mode == "required" else "auto"
    return _Choice(tuple(tool for tool in tools if tool.name in names), mode)


def _of(named: NamedTool, number: int, tools: tuple[Tool, ...]) -> str:
    where = f"tool_choice.allowed_tools.tools[{number}].function.name"
    return _known(named.function.name, tools, where)


def _known(name: str, tools: tuple[Tool, ...], where: str) -> str:
    if all(tool.name != name for tool in tools):
        raise _unknown(where)
    return name


def _unknown(where: str) -> Problem:
    return invalid(where, field_message(where, "names no function of `tools`."))
