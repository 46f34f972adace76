"""Converts clients' tools and formats for the floors below, and checks their limits; types are in `frames`."""

from __future__ import annotations

from typing import assert_never

import msgspec

from connections.protocol import formats, frames
from connections.protocol.errors import BadParams
from engine.reply_spec import Format, Grammar, JsonObject, JsonSchema, Regex, Tool
from sessions.tools.server_tool import Approval
from sessions.tools.tool_registry import ToolRegistry
from sessions.turn.message_request import OfferedTool
from sessions.turn.tool_calls import CallAnswer, Decision, Result, is_object

MAX_SCHEMA_BYTES = 32 * 1024
"""Bytes of a tool's parameters or a format's schema, as JSON without white space."""
MAX_PATTERN_CHARS = 8192
"""Characters of a regular expression or a grammar."""
_WORDS = ("auto", "none", "required")


def offered_tools(frame: frames.TurnFrame, box: ToolRegistry) -> tuple[OfferedTool, ...]:
    """Return the tools that a turn may call. `box`: the server's tools. Raises BadParams, which names the field.

    A server tool whose source is away is left out, unless it must be called: the client had it in its list.
    """
    offered = tuple(
        _offered(place, one, box)
        for place, one in enumerate(frame.tools)
        if one.where == "client" or one.name == frame.tool_choice or not box.has_gone(one.name)
    )
    names = [one.name for one in frame.tools]
    if len(set(names)) < len(names):
        raise BadParams("must have each name once.", field="tools")
    if frame.tool_choice not in (*_WORDS, *names):
        raise BadParams(f"must be {', '.join(_WORDS)} or the name of a tool.", field="tool_choice")
    if frame.tool_choice == "required" and not offered:
        raise BadParams("can't be required without tools.", field="tool_choice")
    return offered


def format_of(requested: formats.Format | None) -> Format | None:
    """Return the format of a reply. Raises BadParams; the engine says whether it can follow it."""
    match requested:
        case None:
            return None
        case formats.JsonSchemaFormat():
            return JsonSchema(_schema(requested.schema, "params.format.schema"))
        case formats.JsonObjectFormat():
            return JsonObject()
        case formats.RegexFormat():
            return Regex(_short(requested.pattern, "params.format.pattern"))
        case formats.GrammarFormat():
            return Grammar(_short(requested.lark, "params.format.lark"))
        case _:
            assert_never(requested)


def _offered(place: int, requested: frames.OfferedTool, box: ToolRegistry) -> OfferedTool:
    field = f"tools[{place}]"
    if requested.where == "client":
        tool = Tool(requested.name, requested.description)
        if requested.parameters is not None:
            shape = _schema(requested.parameters, f"{field}.parameters")
            tool = msgspec.structs.replace(tool, parameters=shape)
        return OfferedTool(tool=tool, needs="approval" if requested.approval == "always" else "none")
    if (there := box.tool(requested.name)) is None:
        raise BadParams("names no tool of this server.", field=f"{field}.name")
    if requested.parameters is not None or requested.description:
        raise BadParams("is the server's: it has a description and parameters.", field=field)
    needs_approval = requested.approval == "always" or there.approval is Approval.ALWAYS
    return OfferedTool(tool=there.shown, where="server", needs="approval" if needs_approval else "none")


def answer_of(frame: frames.Answering) -> CallAnswer:
    """Return a client's answer to a call. Raises BadParams."""
    if isinstance(frame, frames.ToolDecision):
        if frame.args is not None and not is_object(frame.args):
            raise BadParams("must be the text of a JSON object.", field="args")
        return Decision(
            call_id=frame.call_id,
            args_sha256=frame.args_sha256,
            allow=frame.decision == "allow",
            args=frame.args,
        )
    if (frame.content is None) == (frame.error is None):
        raise BadParams("or `error` must be given, and not both.", field="content")
    return Result(call_id=frame.call_id, content=frame.content, error=frame.error)


def _schema(schema: frames.JsonObject, field: str) -> str:
    text = msgspec.json.encode(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise BadParams(f"must have {MAX_SCHEMA_BYTES} bytes at most; it has {len(text)}.", field=field)
    return text.decode()


def _short(text: str, field: str) -> str:
    if len(text) > MAX_PATTERN_CHARS:
        raise BadParams(f"must have {MAX_PATTERN_CHARS} characters at most; it has {len(text)}.", field=field)
    return text
