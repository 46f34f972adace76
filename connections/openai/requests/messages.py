"""Converts a request's messages for the model: roles, parts, calls and their results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from connections.openai.problems import Problem, invalid
from connections.openai.requests.images import IMAGES, check_images, image_at, image_not_allowed
from connections.openai.requests.json_schemas import json_object
from connections.openai.requests.models import ChatMessage, ImageUrl, MessageCall, Part
from connections.openai.unsupported import is_neutral, unsupported_part
from connections.protocol.errors import field_message
from connections.protocol.server_info import Limits
from engine.messages import Message, ToolCall
from engine.vision.image import Image, Seen, joined

MAX_MESSAGES = 2048
MAX_NAME_CHARS = 256
"""Characters of a call's id and of its function's name in the history, which may come from other servers."""
Role = Literal["system", "user", "assistant", "tool"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_BOUNDED = ("system", "user")
"""Roles whose messages have a limited length. Other messages are limited by the body, and by the window."""
_REFUSED = {
    "function_call": "This server takes `tool_calls` in place of `function_call`.",
    "audio": "This server does not speak: replies are text.",
}
_REASONING_PARTS = ("reasoning", "thinking")


def messages_of(given: Sequence[ChatMessage], limits: Limits) -> tuple[Message, ...]:
    """Return the messages. Raises Problem."""
    if not given:
        raise invalid("messages", "`messages` must have at least one message.")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` may have at most {MAX_MESSAGES} messages.")
    messages = tuple(_messages(given, limits))
    check_images(messages, "messages", limits)
    return messages


def _messages(given: Sequence[ChatMessage], limits: Limits) -> Iterator[Message]:
    max_chars = limits.max_content_chars
    call_ids: set[str] = set()
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        converted = _message(message, where, limits)
        if converted.role in _BOUNDED and len(converted.content) > max_chars:
            length = len(converted.content)
            why = f"The message is too long: it has {length} characters, and {max_chars} are allowed."
            raise invalid(f"{where}.content", why, code="content_too_long")
        call_ids.update(call.call_id for call in converted.calls)
        if converted.role == "tool" and converted.call_id not in call_ids:
            where = f"{where}.tool_call_id"
            raise invalid(where, field_message(where, "names no call of a message before it."))
        yield converted


def _message(message: ChatMessage, where: str, limits: Limits) -> Message:
    for field, refused in _REFUSED.items():
        if not is_neutral(getattr(message, field), ([],)):
            raise invalid(f"{where}.{field}", refused, code="unsupported_parameter")
    if (role := _ROLES.get(message.role)) is None:
        raise _no_role(message.role, f"{where}.role")
    (content, images), reasoning_text = _content(message, where, limits)
    if role != "assistant":
        _reject_assistant_fields(message, where)
        call_id = _result_call_id(message, where) if role == "tool" else ""
        return Message(role, content, call_id=call_id, images=images)
    reasoning_text = message.reasoning_content or message.reasoning or reasoning_text
    return Message(
        role, content, reasoning=reasoning_text, calls=tuple(_calls(message.tool_calls or [], where))
    )


def _reject_assistant_fields(message: ChatMessage, where: str) -> None:
    if message.tool_calls:
        raise invalid(
            f"{where}.tool_calls",
            field_message(f"{where}.tool_calls", "is for messages of the role assistant."),
        )


def _result_call_id(message: ChatMessage, where: str) -> str:
    where = f"{where}.tool_call_id"
    if not message.tool_call_id:
        raise invalid(where, field_message(where, "is missing."))
    return message.tool_call_id


def _calls(given: Sequence[MessageCall], where: str) -> Iterator[ToolCall]:
    for number, call in enumerate(given):
        place = f"{where}.tool_calls[{number}]"
        if call.type != "function":
            raise invalid(f"{place}.type", field_message(f"{place}.type", "must be function."))
        for field, name in (("id", call.id), ("function.name", call.function.name)):
            if not 0 < len(name) <= MAX_NAME_CHARS:
                why = f"must have 1 to {MAX_NAME_CHARS} characters."
                raise invalid(f"{place}.{field}", field_message(f"{place}.{field}", why))
        arguments = call.function.arguments.strip() or "{}"
        if not json_object(arguments):
            field = f"{place}.function.arguments"
            raise invalid(field, field_message(field, "must be the text of a JSON object."))
        yield ToolCall(call.id, call.function.name, arguments)


def _content(message: ChatMessage, where: str, limits: Limits) -> tuple[Seen, str]:
    """Return what the message says and shows, and its reasoning."""
    match message.content:
        case str() as text:
            return (text, ()), ""
        case list() as parts:
            return _join_parts(parts, message.role, where, limits)
        case None if message.role == "assistant":
            return ("", ()), ""
        case None:
            raise invalid(f"{where}.content", field_message(f"{where}.content", "is missing."))


def _join_parts(parts: Sequence[Part], role: str, where: str, limits: Limits) -> tuple[Seen, str]:
    contents: list[Seen] = []
    reasoning_text: list[str] = []
    for number, part in enumerate(parts):
        place = f"{where}.content[{number}]"
        if part.type in IMAGES:
            contents.append(("", (_image(part, role, place, limits),)))
            continue
        thinks = role == "assistant" and part.type in _REASONING_PARTS
        if part.type != "text" and not thinks:
            raise invalid(f"{place}.type", unsupported_part(part.type))
        text = part.text if part.text is not None or not thinks else part.thinking
        if text is None:
            raise invalid(f"{place}.text", field_message(f"{place}.text", "is missing."))
        if thinks:
            reasoning_text.append(text)
        else:
            contents.append((text, ()))
    return joined(contents), "\n".join(reasoning_text)


def _image(part: Part, role: str, where: str, limits: Limits) -> Image:
    if role != "user":
        raise image_not_allowed(f"{where}.type", limits)
    shown = ImageUrl(part.image_url) if isinstance(part.image_url, str) else part.image_url
    url, detail = (None, None) if shown is None else (shown.url, shown.detail)
    return image_at(url, f"{where}.image_url", limits, detail=detail)


def _no_role(role: str, field: str) -> Problem:
    if role == "function":
        return invalid(field, "This server takes messages of the role tool in place of function.")
    return invalid(field, field_message(field, "must be system, developer, user, assistant or tool."))
