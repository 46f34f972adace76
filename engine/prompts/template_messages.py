"""Messages and tools in the form that chat templates read (transformers' documentation, "Tool use"). Knows no template."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import PromptRejected
from engine.images.image import in_order
from engine.messages import Message, ToolCall
from engine.reply_spec import Tool

Mark = Callable[[Any], Any]
"""Applied to everything that people and models wrote."""

TemplateMessage = dict[str, Any]

SHORT_ID = 9
"""The number of letters and digits that Mistral's templates require of a call's id."""


@dataclass(frozen=True, slots=True)
class CallStyle:
    """The style that a template requires. `short_ids`: ids of calls have nine letters or digits.

    `single`: one call a message. `parts`: contents are lists of parts, as for models that take images.
    """

    short_ids: bool = False
    single: bool = False
    parts: bool = False

    def id_of(self, call_id: str) -> str:
        """Return the id of a call for the template."""
        if not self.short_ids:
            return call_id
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:SHORT_ID]


def as_is(data: Any) -> Any:
    """Return what was said, unchanged: the `Mark` of a plain prompt."""
    return data


PLAIN_STYLE = CallStyle()


def template_messages(messages: Sequence[Message], style: CallStyle, mark: Mark) -> list[TemplateMessage]:
    """Return messages in the form that a template reads."""
    names: dict[str, str] = {}
    made = []
    for message in parted(messages) if style.single else messages:
        names |= {call.call_id: call.name for call in message.calls}
        made.append(_template_message(message, names, style, mark))
    return made


def template_tools(tools: Sequence[Tool], mark: Mark) -> list[dict[str, Any]] | None:
    """Return tools in the form that a template reads; None if there are none. Raises PromptRejected."""
    return [_template_tool(tool, mark) for tool in tools] or None


def parted(messages: Sequence[Message]) -> list[Message]:
    """Give each call of a message a message of its own, followed by its result. The results follow the calls in order."""
    made: list[Message] = []
    taken = 0
    for n, message in enumerate(messages):
        results = messages[n + 1 : n + 1 + len(message.calls)]
        if len(message.calls) > 1 and len(results) == len(message.calls):
            for place, (call, result) in enumerate(zip(message.calls, results, strict=True)):
                first = message if place == 0 else Message("assistant", "")
                made += [msgspec.structs.replace(first, calls=(call,), written=""), result]
            taken = n + 1 + len(results)
        elif n >= taken:
            made.append(message)
    return made


def _template_message(
    message: Message, names: dict[str, str], style: CallStyle, mark: Mark
) -> TemplateMessage:
    made: TemplateMessage = {"role": message.role, "content": _content(message, style, mark)}
    if message.reasoning:
        made["reasoning_content"] = mark(message.reasoning)
    if message.calls:
        made["tool_calls"] = [_template_call(call, style, mark) for call in message.calls]
    if message.role == "tool":
        made["tool_call_id"] = mark(style.id_of(message.call_id))
        if message.call_id in names:
            made["name"] = mark(names[message.call_id])
    return made


def _content(message: Message, style: CallStyle, mark: Mark) -> Any:
    if not style.parts:
        return mark(message.content)
    parts = [
        {"type": "text", "text": mark(part)} if isinstance(part, str) else {"type": "image"}
        for part in in_order(message.content, message.images)
    ]
    return parts or [{"type": "text", "text": ""}]


def _template_call(call: ToolCall, style: CallStyle, mark: Mark) -> dict[str, Any]:
    function = {"name": mark(call.name), "arguments": mark(_object(call.arguments))}
    return {"type": "function", "id": mark(style.id_of(call.call_id)), "function": function}


def _template_tool(tool: Tool, mark: Mark) -> dict[str, Any]:
    try:
        parameters = msgspec.json.decode(tool.parameters, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        why = f"The parameters of the tool {tool.name!r} are no JSON Schema of an object: {error}."
        raise PromptRejected(why, field="tools") from error
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": {key: mark(value) for key, value in function.items()}}


def _object(arguments: str) -> Any:
    """Return arguments as an object. Malformed ones, which another model may have written, stay text."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return arguments
