"""Converts a request's messages for the model: blocks of text, reasoning, calls and their results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import assert_never

import msgspec

from connections.messages.models import InputBlock, InputMessage, ResultBlock, Source
from connections.openai.problems import Problem, invalid
from connections.openai.requests.images import check_images, image_at, image_not_allowed, image_of
from connections.openai.requests.messages import MAX_MESSAGES, MAX_NAME_CHARS
from connections.protocol.errors import field_message
from connections.protocol.server_info import Limits
from engine.messages import Message, ToolCall
from engine.vision.image import Image, joined

_UNSUPPORTED_BLOCKS = {
    "document": "This server does not take documents: send their text.",
    "search_result": "This server does not take results of searches as blocks: send their text.",
    "container_upload": "This server has no containers.",
}
_ONLY_BLOCKS = "This server takes blocks of text, of images, of thinking, of calls (tool_use) and of their results (tool_result) only."
TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Blocks of system messages that change which tools are offered from there on."""
_BOUNDED = ("system", "user")
"""Roles whose messages have a limited length. Other messages are limited by the body, and by the window."""


def messages_of(
    given: Sequence[InputMessage], system: str | Sequence[ResultBlock] | None, limits: Limits
) -> tuple[Message, ...]:
    """Return the system prompt and the messages. Neighbours of one role are joined. Raises Problem."""
    if not given:
        raise invalid("messages", "`messages` must have at least one message.")
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` may have at most {MAX_MESSAGES} messages.")
    converted = [_system(system, "system")] if system else []
    last_user = max((number for number, message in enumerate(given) if message.role == "user"), default=-1)
    for number, message in enumerate(given):
        if message.role != "system" or message.clear_at != "next_user_message" or number > last_user:
            converted += _message(message, f"messages[{number}].content", number, limits)
    messages = tuple(_merged(converted))
    if not messages:
        raise invalid("messages", "`messages` have nothing for the model to answer.")
    _check(messages, limits.max_content_chars)
    check_images(messages, "messages", limits)
    return messages


def _message(message: InputMessage, where: str, number: int, limits: Limits) -> list[Message]:
    content = (
        [InputBlock("text", text=message.content)] if isinstance(message.content, str) else message.content
    )
    match message.role:
        case "user":
            return list(_user_messages(content, where, limits))
        case "assistant":
            return [_assistant_message(content, where)]
        case "system":
            texts = [
                _text(block, f"{where}[{place}]")
                for place, block in enumerate(content)
                if block.type not in TOOL_CHANGES
            ]
            return [Message("system", "\n".join(texts))] if texts or not content else []
        case _:
            field = f"messages[{number}].role"
            raise invalid(field, field_message(field, "must be user, assistant or system."))


def _system(system: str | Sequence[ResultBlock], where: str) -> Message:
    if isinstance(system, str):
        return Message("system", system)
    texts = [_result_text(block, f"{where}[{place}]") for place, block in enumerate(system)]
    return Message("system", "\n".join(texts))


def _user_messages(blocks: Sequence[InputBlock], where: str, limits: Limits) -> Iterator[Message]:
    """Yield what a user says and shows, and results of calls, in order."""
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        match block.type:
            case "tool_result":
                yield _result(block, place, limits)
            case "image":
                yield Message("user", "", images=(_image(block.source, f"{place}.source", limits),))
            case _:
                yield Message("user", _text(block, place))


def _image(source: Source | None, where: str, limits: Limits) -> Image:
    match source:
        case Source(type="base64", data=data, media_type=media_type):
            return image_of(data, media_type, where, limits)
        case Source(type="url", url=url):
            return image_at(url, where, limits)
        case _ if limits.max_images:
            raise invalid(where, field_message(where, "must be of the type base64."))
        case _:
            raise image_not_allowed(where, limits)


def _assistant_message(blocks: Sequence[InputBlock], where: str) -> Message:
    """Return what the model wrote before. Reasoning that only another server can read is left out."""
    text_parts: list[str] = []
    reasoning_parts: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        match block.type:
            case "thinking":
                reasoning_parts.append(_required(block.thinking, f"{place}.thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block, place))
            case _:
                text_parts.append(_text(block, place))
    return Message(
        "assistant",
        "\n".join(text_parts),
        reasoning="\n".join(filter(None, reasoning_parts)),
        calls=tuple(calls),
    )


def _call(block: InputBlock, where: str) -> ToolCall:
    call_id = _name(block.id, f"{where}.id")
    name = _name(block.name, f"{where}.name")
    text = bytes(block.input)
    if not text.startswith(b"{"):
        raise invalid(f"{where}.input", field_message(f"{where}.input", "must be an object."))
    return ToolCall(call_id, name, msgspec.json.format(text, indent=-1).decode())


def _result(block: InputBlock, where: str, limits: Limits) -> Message:
    call_id = _required(block.tool_use_id, f"{where}.tool_use_id")
    match block.content:
        case None:
            text = ""
        case str():
            text = block.content
        case list():
            if any(part.type == "image" for part in block.content):
                raise image_not_allowed(f"{where}.content", limits)
            parts = enumerate(block.content)
            text = "\n".join(_result_text(part, f"{where}.content[{number}]") for number, part in parts)
        case _:
            assert_never(block.content)
    return Message("tool", f"Error: {text}" if block.is_error else text, call_id=call_id)


def _text(block: InputBlock, where: str) -> str:
    if block.type != "text":
        raise _no_part(block.type, f"{where}.type")
    return _required(block.text, f"{where}.text")


def _result_text(block: ResultBlock, where: str) -> str:
    if block.type == "tool_reference":
        return f"Tool available: {_name(block.tool_name, f'{where}.tool_name')}"
    if block.type != "text":
        raise _no_part(block.type, f"{where}.type")
    return _required(block.text, f"{where}.text")


def _no_part(kind: str, where: str) -> Problem:
    return invalid(where, _UNSUPPORTED_BLOCKS.get(kind, _ONLY_BLOCKS))


def _required(text: str | None, where: str) -> str:
    if text is None:
        raise invalid(where, field_message(where, "is missing."))
    return text


def _name(text: str | None, where: str) -> str:
    if not 0 < len(_required(text, where)) <= MAX_NAME_CHARS:
        raise invalid(where, field_message(where, f"must have 1 to {MAX_NAME_CHARS} characters."))
    return text or ""


def _merged(messages: Sequence[Message]) -> Iterator[Message]:
    """Join neighbours of one role; a result stays separate. Texts are joined once, however many blocks there are."""
    for role, neighbours in groupby(messages, lambda message: message.role):
        together = tuple(neighbours)
        if role == "tool" or len(together) == 1:
            yield from together
            continue
        content, images = joined((message.content, message.images) for message in together)
        yield Message(
            role,
            content,
            reasoning="\n".join(message.reasoning for message in together if message.reasoning),
            calls=tuple(call for message in together for call in message.calls),
            images=images,
        )


def _check(messages: Sequence[Message], max_chars: int) -> None:
    """Raise Problem for a text that is too long, and for a result without its call."""
    call_ids: set[str] = set()
    for message in messages:
        if message.role in _BOUNDED and len(message.content) > max_chars:
            length, field = len(message.content), "system" if message.role == "system" else "messages"
            why = f"The message is too long: it has {length} characters, and {max_chars} are allowed."
            raise invalid(field, why, code="content_too_long")
        call_ids.update(call.call_id for call in message.calls)
        if message.role == "tool" and message.call_id not in call_ids:
            why = "`messages` have a tool_result whose `tool_use_id` names no tool_use before it."
            raise invalid("messages", why)
