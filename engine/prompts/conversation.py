"""Messages and tools in the form that chat templates read (transformers' documentation, "Tool use"). Knows no template."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import PromptRejected
from engine.images.image import in_order, joined
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
    """Give each call of a message a message of its own, with its result right behind it."""
    made: list[Message] = []
    results = {message.call_id: message for message in messages if message.role == "tool"}
    done: set[str] = set()
    for message in messages:
        if len(message.calls) > 1:
            made += _one_by_one(message, results)
            done.update(call.call_id for call in message.calls)
        elif message.role != "tool" or message.call_id not in done:
            made.append(message)
    return made


def without_tools(messages: Sequence[Message]) -> list[Message]:
    """Return messages for a template without tools: calls become the assistant's text, and results the user's."""
    made: list[Message] = []
    for message in messages:
        if message.role == "tool":
            made.append(Message("user", message.content))
        elif message.calls:
            made.append(Message("assistant", message.written or _spelled(message)))
        else:
            made.append(message)
    return list(_joined(made))


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system prompt in front of the first user message. If there is none, the system prompt becomes one."""
    system = [message.content for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    if not system:
        return others
    first = next((n for n, message in enumerate(others) if message.role == "user"), None)
    if first is None:
        return [Message("user", "\n\n".join(system)), *others]
    before = "\n\n".join(system)
    folded = f"{before}\n\n{others[first].content}"
    images = tuple(
        image.moved(len(before) + (2 + image.at if image.at else 1)) for image in others[first].images
    )
    others[first] = msgspec.structs.replace(others[first], content=folded, images=images)
    return others


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
    told = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": {key: mark(value) for key, value in told.items()}}


def _object(arguments: str) -> Any:
    """Return arguments as an object. Malformed ones, which another model may have written, stay text."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return arguments


def _one_by_one(message: Message, results: dict[str, Message]) -> Iterator[Message]:
    for place, call in enumerate(message.calls):
        first = message if place == 0 else Message("assistant", "")
        yield msgspec.structs.replace(first, calls=(call,), written="")
        if call.call_id in results:
            yield results[call.call_id]


def _spelled(message: Message) -> str:
    return "\n".join([message.content, *(f"{call.name}({call.arguments})" for call in message.calls)]).strip()


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages, with neighbouring ones of the user joined, since many templates want roles to alternate."""
    last: Message | None = None
    for message in messages:
        if last is not None and last.role == message.role == "user":
            last = _together(last, message)
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _together(first: Message, second: Message) -> Message:
    if not (first.images or second.images):
        return Message("user", f"{first.content}\n{second.content}")
    content, images = joined([(first.content, first.images), (second.content, second.images)])
    return Message("user", content, images=images)
