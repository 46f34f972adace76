"""The tools of a request: which may be called, and which must be. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from connections.api.chat_parser import MAX_TOOLS
from connections.api.errors import invalid
from connections.api.fields import schema_text
from connections.messages.blocks import TOOL_CHANGES
from connections.messages.models import ClientTool, InputMessage, ToolUseChoice
from connections.protocol.errors import field_message
from engine import reply_spec
from engine.reply_spec import ReplySpec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_CLIENT_TOOL_TYPES = (None, "custom")
"""Types of tools that the client runs."""


def tools_spec(
    given: Sequence[ClientTool] | None, choice: ToolUseChoice | None, messages: Sequence[InputMessage] = ()
) -> ReplySpec:
    """Return the tools that `messages` did not withdraw, and how to choose among them. Raises Problem."""
    withdrawn = _removed_tools(given or (), messages)
    tools = tuple(tool for tool in _tools(given or ()) if tool.name not in withdrawn)
    kind = "auto" if choice is None else choice.type
    if not tools:
        if kind in ("any", "tool"):
            raise invalid("tool_choice", field_message("tool_choice", "needs `tools` to choose from."))
        return ReplySpec()
    parallel = choice is None or not choice.disable_parallel_tool_use
    match kind:
        case "auto" | "none":
            return ReplySpec(tools=tools, tool_choice=kind, parallel_calls=parallel)
        case "any":
            return ReplySpec(tools=tools, tool_choice="required", parallel_calls=parallel)
        case "tool":
            name = _known(choice, tools)
            return ReplySpec(tools=tools, tool_choice="named", tool_name=name, parallel_calls=parallel)
        case _:
            raise invalid(
                "tool_choice.type", field_message("tool_choice.type", "must be auto, any, tool or none.")
            )


def _tools(given: Sequence[ClientTool]) -> tuple[reply_spec.Tool, ...]:
    if len(given) > MAX_TOOLS:
        raise invalid("tools", field_message("tools", f"may have at most {MAX_TOOLS} tools."))
    tools: dict[str, reply_spec.Tool] = {}
    for number, one in enumerate(given):
        if one.type not in _CLIENT_TOOL_TYPES:
            continue
        tool = _tool(one, f"tools[{number}]")
        if tool.name in tools:
            where = f"tools[{number}].name"
            raise invalid(where, field_message(where, "is the name of another tool, too."))
        tools[tool.name] = tool
    return tuple(tools.values())


def _removed_tools(given: Sequence[ClientTool], messages: Sequence[InputMessage]) -> set[str]:
    """Return the tools that a system message withdrew and no later one offered again. Raises Problem."""
    names: set[str] = set()
    declared = {tool.name for tool in given}
    for number, message in enumerate(messages):
        blocks = message.content if message.role == "system" and isinstance(message.content, list) else ()
        for place, block in enumerate(blocks):
            if block.type not in TOOL_CHANGES:
                continue
            where = f"messages[{number}].content[{place}].tool"
            if block.tool is None or block.tool.type != "tool_reference":
                raise invalid(where, field_message(where, "must be of the type tool_reference."))
            if block.tool.name not in declared:
                raise invalid(f"{where}.name", field_message(f"{where}.name", "names none of `tools`."))
            (names.add if block.type == "tool_removal" else names.discard)(block.tool.name)
    return names


def ignored_tools(given: Sequence[ClientTool] | None) -> tuple[str, ...]:
    """Return the places of tools that Anthropic's servers run."""
    return tuple(
        f"tools[{number}]" for number, tool in enumerate(given or ()) if tool.type not in _CLIENT_TOOL_TYPES
    )


def _tool(tool: ClientTool, where: str) -> reply_spec.Tool:
    if not _NAME.match(tool.name):
        why = "must have 1 to 128 letters, digits, _ or -."
        raise invalid(f"{where}.name", field_message(f"{where}.name", why))
    if (schema := schema_text(tool.input_schema, f"{where}.input_schema")) is None:
        raise invalid(f"{where}.input_schema", field_message(f"{where}.input_schema", "is missing."))
    return reply_spec.Tool(tool.name, tool.description or "", schema, strict=bool(tool.strict))


def _known(choice: ToolUseChoice | None, tools: Sequence[reply_spec.Tool]) -> str:
    name = (choice.name if choice else None) or ""
    if all(tool.name != name for tool in tools):
        raise invalid("tool_choice.name", field_message("tool_choice.name", "names none of `tools`."))
    return name
