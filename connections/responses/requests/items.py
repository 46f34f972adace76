"""Converts the items of a request to messages for the model. Pure; a refusal names its place."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from connections.openai.problems import Problem, invalid
from connections.openai.requests.images import (
    IMAGES,
    ONLY_USER_IMAGES,
    check_images,
    image_at,
    image_not_allowed,
)
from connections.openai.requests.json_schemas import json_object
from connections.openai.requests.messages import MAX_MESSAGES, MAX_NAME_CHARS
from connections.openai.unsupported import unsupported_part
from connections.protocol.errors import field_message
from connections.protocol.server_info import Limits
from connections.responses.requests.models import Item, Part
from connections.responses.requests.tools import joined_name
from engine.messages import Message, ToolCall
from engine.vision.image import Image, Seen, joined

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
OUTPUT = "function_call_output"
"""The type of an item with the result of a call."""
_OPAQUE_PREFIX = "midstream."
"""Begins reasoning that a client should send back without reading it. It is not secret."""
_NO_SUMMARY = "has a summary that this server did not write."
SUMMARY = "What was said before, as a summary:"
_NO_APPROVAL = (
    "names no approval that the response before this one asks for: send that as `previous_response_id`."
)
_MCP_ITEMS = ("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response")
_FOREIGN_REASONING = "has thoughts that this server did not write: leave the item out."


class _ErrorPart(msgspec.Struct):
    text: str = ""


class _Error(msgspec.Struct):
    content: list[_ErrorPart] = []


class _AssistantMessage:
    """An assistant's message, as far as its items have been read."""

    def __init__(self) -> None:
        self.reasoning_parts: list[str] = []
        self.message_text: str | None = None
        self.calls: list[ToolCall] = []
        self.results: list[Message] = []
        self.allowed: dict[str, str] = {}

    def take(self) -> Iterator[Message]:
        """Return the message, if there is one, and begin another."""
        if self.message_text is not None or self.calls:
            reasoning_parts = "\n".join(self.reasoning_parts)
            yield Message(
                "assistant", self.message_text or "", reasoning=reasoning_parts, calls=tuple(self.calls)
            )
        yield from self.results
        self.reasoning_parts, self.message_text, self.calls, self.results = [], None, [], []


def messages_of(
    given: str | Sequence[Item], limits: Limits, before: Sequence[Message] = (), *, field: str = "input"
) -> tuple[Message, ...]:
    """Return the messages of an input. `before`: those before it; `field`: where the request has it. Raises Problem."""
    if isinstance(given, str):
        given = [Item(role="user", content=given)] if given else []
    if not given and not before:
        raise invalid(field, f"`{field}` must have at least one item.")
    if len(given) + len(before) > MAX_MESSAGES:
        raise invalid(field, f"`{field}` and what it follows may have at most {MAX_MESSAGES} items.")
    call_ids = {call.call_id for message in before for call in message.calls}
    messages = tuple(_messages(given, limits, call_ids, field))
    check_images((*before, *messages), field, limits)
    return messages


def _messages(given: Sequence[Item], limits: Limits, call_ids: set[str], field: str) -> Iterator[Message]:
    reply = _AssistantMessage()
    for number, item in enumerate(given):
        where = f"{field}[{number}]"
        kind = item.type or "message"
        if kind == "message" and _role(item, where) == "assistant":
            if reply.message_text is not None or reply.calls:
                yield from reply.take()
            reply.message_text = _text(item.content, f"{where}.content")
        elif kind == "reasoning":
            if reply.message_text is not None or reply.calls:
                yield from reply.take()
            reply.reasoning_parts.append(_reasoning(item, where))
        elif kind == "function_call":
            reply.calls.append(call := _call(item, where))
            call_ids.add(call.call_id)
        elif kind in _MCP_ITEMS:
            _take_server_item(item, kind, where, reply, call_ids)
        else:
            yield from reply.take()
            yield _other(item, kind, where, limits, call_ids)
    yield from reply.take()
    for where in reply.allowed.values():
        raise _no_approval(where)


def _take_server_item(
    item: Item, kind: str, where: str, reply: _AssistantMessage, call_ids: set[str]
) -> None:
    """Take a returned item of server tools: a call with its result. Raises Problem."""
    if kind == "mcp_list_tools":
        return
    if kind == "mcp_approval_response":
        if (allowed := call_id_in(item.approval_request_id or "")) not in call_ids:
            raise _no_approval(where)
        reply.allowed[allowed or ""] = where
        return
    if (named := call_id_in(item.id or "")) is None:
        raise invalid(f"{where}.id", field_message(f"{where}.id", "is of no call that this server ran."))
    if named not in call_ids:
        reply.calls.append(_call(msgspec.structs.replace(item, call_id=named), where))
        call_ids.add(named)
    if kind == "mcp_call":
        reply.allowed.pop(named, None)
        text = item.output if isinstance(item.output, str) else _error_text(item)
        reply.results.append(Message("tool", text, call_id=named))


def _no_approval(where: str) -> Problem:
    field = f"{where}.approval_request_id"
    return invalid(field, field_message(field, _NO_APPROVAL), code="approval_not_found")


def call_id_in(item_id: str) -> str | None:
    """Return the call in an item's id, if the server ran it; None for other ids."""
    try:
        return bytes.fromhex(item_id.rpartition("_")[2].partition("-")[0]).decode() or None
    except ValueError:
        return None


def _error_text(item: Item) -> str:
    """Return the outcome of a failed call."""
    try:
        error = msgspec.json.decode(item.error, type=_Error | None)
    except msgspec.DecodeError:
        return ""
    return "" if error is None else "\n".join(part.text for part in error.content)


def _other(item: Item, kind: str, where: str, limits: Limits, call_ids: set[str]) -> Message:
    match kind:
        case "message":
            return _input_message(item, where, limits)
        case _ if kind == OUTPUT:
            if item.call_id not in call_ids:
                field = f"{where}.call_id"
                raise invalid(field, field_message(field, "names no call before it."))
            return Message("tool", _text(item.output, f"{where}.output"), call_id=item.call_id or "")
        case "compaction":
            field = f"{where}.encrypted_content"
            if (summary := decode_opaque(item.encrypted_content or "")) is None:
                raise invalid(field, field_message(field, _NO_SUMMARY))
            return Message("user", f"{SUMMARY}\n{summary}")
        case _:
            raise invalid(f"{where}.type", f"This server takes no items of the type {kind[:64]}.")


def _input_message(item: Item, where: str, limits: Limits) -> Message:
    """Return a message not from the assistant; only a user's may show images."""
    role, field = _role(item, where), f"{where}.content"
    if isinstance(item.content, list):
        if role != "user" and any(part.type in IMAGES for part in item.content):
            raise image_not_allowed(field, limits)
        text, images = joined(
            _text_or_image(part, f"{field}[{number}]", limits) for number, part in enumerate(item.content)
        )
    else:
        text, images = _text(item.content, field), ()
    if len(text) > limits.max_content_chars:
        most = limits.max_content_chars
        why = f"The message is too long: it has {len(text)} characters, and {most} are allowed."
        raise invalid(field, why, code="content_too_long")
    return Message(role, text, images=images)


def _text_or_image(part: Part, where: str, limits: Limits) -> Seen:
    return ("", (_image(part, where, limits),)) if part.type in IMAGES else (_part(part, where), ())


def _image(part: Part, where: str, limits: Limits) -> Image:
    if part.file_id is not None and part.image_url is None and limits.max_images:
        raise invalid(f"{where}.file_id", "This server keeps no files: send the image in a `data:` URL.")
    return image_at(part.image_url, f"{where}.image_url", limits, detail=part.detail)


def _role(item: Item, where: str) -> Literal["system", "user", "assistant"]:
    if (role := _ROLES.get(item.role or "")) is None:
        field = f"{where}.role"
        raise invalid(field, field_message(field, "must be system, developer, user or assistant."))
    return role


def _call(item: Item, where: str) -> ToolCall:
    for field, name in (("call_id", item.call_id), ("name", item.name)):
        if not 0 < len(name or "") <= MAX_NAME_CHARS:
            place = f"{where}.{field}"
            raise invalid(place, field_message(place, f"must have 1 to {MAX_NAME_CHARS} characters."))
    arguments = (item.arguments or "").strip() or "{}"
    if not json_object(arguments):
        place = f"{where}.arguments"
        raise invalid(place, field_message(place, "must be the text of a JSON object."))
    return ToolCall(item.call_id or "", joined_name(item.namespace, item.name), arguments)


def _reasoning(item: Item, where: str) -> str:
    """Return the reasoning in an item's content, or in what this server gave its client to send back."""
    if item.content:
        return _text(item.content, f"{where}.content")
    if item.encrypted_content is None:
        return ""
    field = f"{where}.encrypted_content"
    if (text := decode_opaque(item.encrypted_content)) is None:
        raise invalid(field, field_message(field, _FOREIGN_REASONING))
    return text


def _text(content: str | Sequence[Part] | None, where: str) -> str:
    match content:
        case str():
            return content
        case None:
            raise invalid(where, field_message(where, "is missing."))
        case _:
            return "\n".join(_part(part, f"{where}[{number}]") for number, part in enumerate(content))


def _part(part: Part, where: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type in IMAGES:
        raise invalid(f"{where}.type", ONLY_USER_IMAGES)
    if part.type not in (*_TEXTS, "refusal"):
        raise _unsupported_part(part.type, where)
    if text is None:
        raise invalid(f"{where}.text", field_message(f"{where}.text", "is missing."))
    return text


def _unsupported_part(kind: str, where: str) -> Problem:
    return invalid(f"{where}.type", unsupported_part(kind))


def encode_opaque(text: str) -> str:
    """Return a text for the client to send back unchanged."""
    return _OPAQUE_PREFIX + urlsafe_b64encode(text.encode(errors="replace")).decode()


def decode_opaque(text: str) -> str | None:
    """Return a sealed text; None if this server did not seal it."""
    if not text.startswith(_OPAQUE_PREFIX):
        return None
    try:
        return urlsafe_b64decode(text.removeprefix(_OPAQUE_PREFIX)).decode()
    except (binascii.Error, UnicodeError, ValueError):
        return None


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Return the bytes that limits of messages count, with those of images."""
    return msgspec.json.encode(messages)
