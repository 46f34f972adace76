"""Requests of the Responses API, as far as supported (OpenAI; Open Responses), and their conversion to a turn's request. Pure.

A refusal names the field.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from connections.api.chat_requests import MAX_TOP_LOGPROBS, BaseRequest, params_of
from connections.api.requests import (
    FUNCTION_NAME,
    IMAGES,
    MAX_TOOLS,
    ONLY_USER_IMAGES,
    NeutralValues,
    check_images,
    check_length,
    check_tool_count,
    checked_arguments,
    checked_effort,
    checked_name,
    chosen_spec,
    decode_request,
    function_tool,
    image_at,
    image_not_allowed,
    invalid,
    invalid_field,
    known_tool,
    null,
    reject_fields,
    required,
    required_schema,
    unique_tools,
    unsupported_part,
)
from connections.protocol.base import Limits
from engine.messages import Format, JsonObject, JsonSchema, Message, ReplySpec, ToolCall
from engine.messages import Tool as EngineTool
from engine.vision.image import Image, joined
from sessions.limits.bounds import MAX_MESSAGES
from sessions.running.ephemeral import EphemeralRequest

Metadata = dict[str, str]
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
MAX_METADATA = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512
_NEUTRAL: NeutralValues = {
    "prompt": ((), "Stored prompts are not supported: send `instructions` and `input`."),
    "background": ((False,), "Responses are not written in the background: read the stream."),
    "generate": ((True,), "`generate` is not supported: leave it out."),
    "moderation": ((), "Moderation models are not supported: the operator's filters apply."),
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
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
_FOREIGN_REASONING = "has reasoning that this server did not produce: leave the item out."
Tools = tuple[EngineTool, ...]


class Part(msgspec.Struct, frozen=True):
    """A part of an item's content: a text, an image in a `data:` URL, or an assistant's refusal."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True):
    """An item of the input: a message, a call, its result, reasoning, or a reference to a stored item."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    encrypted_content: str | None = None


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called, or several in a `namespace` (`tools`).

    `parameters`: a JSON Schema of an object. `strict` has no effect, as at the chat's endpoint.
    """

    type: str
    name: str | None = None
    tools: list[Tool] | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None


class NamedTool(msgspec.Struct, frozen=True):
    """Names a function."""

    name: str = ""
    namespace: str | None = None
    type: str = "function"


class ToolChoice(msgspec.Struct, frozen=True):
    """The tool to call, or the tools that may be called, and whether one must be."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str = "auto"
    tools: list[NamedTool] | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """The format of a reply: `text`, `json_object` or `json_schema`. `strict` has no effect: a reply always follows its schema."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """The format of the reply's text. `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    """How much the model reasons. `summary` has no effect: all of the reasoning is sent."""

    effort: str | None = None
    summary: str | None = None


class ConversationName(msgspec.Struct, frozen=True):
    """Names a conversation."""

    id: str


class ConversationFields(msgspec.Struct, frozen=True):
    """What a conversation begins with, or gets: the body of requests to `/v1/conversations`."""

    items: list[Item] | None = None
    metadata: Metadata | None = None


class Creation(BaseRequest, frozen=True, kw_only=True):
    """Asks for a response: the body of `POST /v1/responses`, and the fields of `response.create` on its WebSocket.

    `max_tool_calls` has no effect. Of `include`, `message.output_text.logprobs` and
    `reasoning.encrypted_content` have one.
    """

    input: str | list[Item] = ""
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: str | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None


_creation = msgspec.json.Decoder(Creation).decode


def parse_response_request(body: bytes) -> Creation:
    """Return the request in a body, with checked types. Raises Problem, TooManyValues."""
    request = decode_request(body, _decoded)
    check_metadata(request.metadata or {})
    if request.truncation not in (None, "auto", "disabled"):
        raise invalid_field("truncation", "must be auto or disabled.")
    return request


def response_turn_request(
    request: Creation, limits: Limits, before: Sequence[Message] = ()
) -> EphemeralRequest:
    """Return the request of a turn without conversation. `before`: messages before the input. Raises Problem."""
    given = messages_of(request.input, limits, before)
    verbosity = None if request.text is None else request.text.verbosity
    ignored_verbosity = () if verbosity in (None, "medium") else ("text.verbosity",)
    system = [Message("system", request.instructions)] if request.instructions else []
    return EphemeralRequest(
        (*system, *before, *given),
        params_of(request, limits, length="max_output_tokens", top_logprobs=_top_logprobs(request)),
        affinity=request.prompt_cache_key or "",
        user=request.cached_for,
        spec=spec_of(request),
        ignored=(*ignored_tools(request.tools), *ignored_verbosity),
    )


def spec_of(request: Creation) -> ReplySpec:
    """Return the requirements of the reply. Raises Problem."""
    spec, found = tools_spec(request), format_of(request)
    effort = request.reasoning.effort if request.reasoning is not None else None
    return msgspec.structs.replace(
        spec,
        format=None if spec.must_call else found,
        reasoning=checked_effort(effort or "auto", "reasoning.effort"),
    )


def format_of(request: Creation) -> Format | None:
    """Return the requested format; None: text. Raises Problem."""
    given = request.text.format if request.text is not None else None
    match None if given is None else given.type:
        case None | "text":
            return None
        case "json_object":
            return JsonObject()
        case "json_schema":
            return JsonSchema(
                required_schema(null() if given is None else given.schema, "text.format.schema")
            )
        case _:
            raise invalid_field("text.format.type", "must be text, json_object or json_schema.")


def field_names() -> dict[str, str]:
    """Return the client's names of fields that lower layers name differently."""
    return {
        "max_new_tokens": "max_output_tokens",
        "special_tokens": "skip_special_tokens",
        "format": "text.format",
        "reasoning": "reasoning.effort",
        "tool_calls": "input",
        "role": "input",
        "images": "input",
    }


def includes_logprobs(request: Creation) -> bool:
    """Return whether log-probabilities are sent."""
    return LOGPROBS in (request.include or ()) or bool(request.top_logprobs)


def _decoded(body: bytes) -> Creation:
    reject_fields(_fields(body), _NEUTRAL)
    return _creation(body)


def _top_logprobs(request: Creation) -> int | None:
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid_field("top_logprobs", f"must be from 0 to {MAX_TOP_LOGPROBS}.")
    return top if includes_logprobs(request) else None


def check_metadata(metadata: Metadata) -> None:
    """Raise Problem if there are too many values, or too long ones."""
    fits = all(len(key) <= MAX_KEY_CHARS and len(value) <= MAX_VALUE_CHARS for key, value in metadata.items())
    if len(metadata) > MAX_METADATA or not fits:
        why = (
            f"may have at most {MAX_METADATA} values, of {MAX_VALUE_CHARS} characters, "
            f"with keys of {MAX_KEY_CHARS}."
        )
        raise invalid_field("metadata", why)


class _AssistantMessage:
    """An assistant's message, as far as its items have been read."""

    def __init__(self) -> None:
        self.reasoning_parts: list[str] = []
        self.message_text: str | None = None
        self.calls: list[ToolCall] = []

    def take(self) -> Iterator[Message]:
        """Yield the message, if any; begin another."""
        if self.message_text is not None or self.calls:
            reasoning_parts = "\n".join(self.reasoning_parts)
            yield Message(
                "assistant", self.message_text or "", reasoning=reasoning_parts, calls=tuple(self.calls)
            )
        self.reasoning_parts, self.message_text, self.calls = [], None, []


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
            call_ids.add(call_id := checked_name(item.call_id, f"{where}.call_id"))
            name = joined_name(item.namespace, checked_name(item.name, f"{where}.name"))
            arguments = checked_arguments(item.arguments, f"{where}.arguments")
            reply.calls.append(ToolCall(call_id, name, arguments))
        else:
            yield from reply.take()
            yield _other(item, kind, where, limits, call_ids)
    yield from reply.take()


def _other(item: Item, kind: str, where: str, limits: Limits, call_ids: set[str]) -> Message:
    match kind:
        case "message":
            return _input_message(item, where, limits)
        case _ if kind == OUTPUT:
            if item.call_id not in call_ids:
                raise invalid_field(f"{where}.call_id", "matches no earlier call.")
            return Message("tool", _text(item.output, f"{where}.output"), call_id=item.call_id or "")
        case _:
            raise invalid(f"{where}.type", f"Unsupported item type: {kind[:64]}.")


def _input_message(item: Item, where: str, limits: Limits) -> Message:
    """Return a message not from the assistant; only a user's may show images."""
    role, field = _role(item, where), f"{where}.content"
    if isinstance(item.content, list):
        if role != "user" and any(part.type in IMAGES for part in item.content):
            raise image_not_allowed(field, limits)
        places = ((part, f"{field}[{number}]") for number, part in enumerate(item.content))
        text, images = joined(
            ("", (_image(part, place, limits),)) if part.type in IMAGES else (_part(part, place), ())
            for part, place in places
        )
    else:
        text, images = _text(item.content, field), ()
    check_length(text, field, limits.max_content_chars)
    return Message(role, text, images=images)


def _image(part: Part, where: str, limits: Limits) -> Image:
    if part.file_id is not None and part.image_url is None and limits.max_images:
        raise invalid(f"{where}.file_id", "Files are not supported: send the image in a `data:` URL.")
    return image_at(part.image_url, f"{where}.image_url", limits, detail=part.detail)


def _role(item: Item, where: str) -> Literal["system", "user", "assistant"]:
    if (role := _ROLES.get(item.role or "")) is None:
        raise invalid_field(f"{where}.role", "must be system, developer, user or assistant.")
    return role


def _reasoning(item: Item, where: str) -> str:
    """Return the reasoning in an item's content, or in what this server gave its client to send back."""
    if item.content:
        return _text(item.content, f"{where}.content")
    if item.encrypted_content is None:
        return ""
    field = f"{where}.encrypted_content"
    if (text := decode_opaque(item.encrypted_content)) is None:
        raise invalid_field(field, _FOREIGN_REASONING)
    return text


def _text(content: str | Sequence[Part] | None, where: str) -> str:
    match content:
        case str():
            return content
        case None:
            raise invalid_field(where, "is missing.")
        case _:
            return "\n".join(_part(part, f"{where}[{number}]") for number, part in enumerate(content))


def _part(part: Part, where: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type in IMAGES:
        raise invalid(f"{where}.type", ONLY_USER_IMAGES)
    if part.type not in (*_TEXTS, "refusal"):
        raise invalid(f"{where}.type", unsupported_part(part.type))
    return required(text, f"{where}.text")


def encode_opaque(text: str) -> str:
    """Return a text for the client to send back unchanged."""
    return _OPAQUE_PREFIX + urlsafe_b64encode(text.encode(errors="replace")).decode()


def decode_opaque(text: str) -> str | None:
    """Return the text; None if this server did not encode it."""
    if not text.startswith(_OPAQUE_PREFIX):
        return None
    try:
        return urlsafe_b64decode(text.removeprefix(_OPAQUE_PREFIX)).decode()
    except (binascii.Error, UnicodeError, ValueError):
        return None


def tools_spec(request: Creation) -> ReplySpec:
    """Return the tools, and how to choose among them. Raises Problem."""
    given = request.tools or []
    check_tool_count(given)
    tools = unique_tools(
        (f"{where}.name", _tool(one, space, where)) for where, space, one in _functions(given)
    )
    check_tool_count(tools)
    chosen = _tool_choice(request.tool_choice, tuple(tools.values()))
    return chosen_spec(chosen, parallel_calls=request.parallel_tool_calls is not False)


def ignored_tools(given: Sequence[Tool] | None) -> tuple[str, ...]:
    """Return the places of tools that only OpenAI's servers run, at most `MAX_TOOLS`."""
    return tuple(where for where, _, tool in _flattened(given or ()) if tool.type != "function")[:MAX_TOOLS]


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
    """Yield all tools, with a namespace's tools in its place."""
    for number, tool in enumerate(given):
        if tool.type != "namespace":
            yield f"tools[{number}]", None, tool
            continue
        for place, one in enumerate(tool.tools or ()):
            yield f"tools[{number}].tools[{place}]", tool.name or "", one


def _tool(tool: Tool, namespace: str | None, where: str) -> EngineTool:
    name = joined_name(namespace, tool.name)
    if namespace is not None and not (tool.name and FUNCTION_NAME.match(name)):
        why = "must have letters, digits, _ or -, and with its namespace and __ between them 64 at most."
        raise invalid_field(f"{where}.name", why)
    return function_tool(name, tool.description, tool.parameters, where)


def _tool_choice(given: str | ToolChoice | None, tools: Tools) -> ReplySpec:
    match given:
        case None:
            return ReplySpec(tools)
        case "auto" | "none" | "required":
            return ReplySpec(tools, tool_choice=given)
        case ToolChoice(type="function", name=str() as called):
            name = known_tool(joined_name(given.namespace, called), tools, "tool_choice.name")
            return ReplySpec(tools, tool_choice="named", tool_name=name)
        case ToolChoice(type="allowed_tools", tools=list()):
            return _allowed(given, tools)
        case _:
            raise invalid_field("tool_choice", "must be auto, none, required, or name one of `tools`.")


def _allowed(given: ToolChoice, tools: Tools) -> ReplySpec:
    """Return only the tools that the model may call."""
    if given.mode not in ("auto", "required", "none"):
        raise invalid_field("tool_choice.mode", "must be auto, required or none.")
    named = []
    for number, one in enumerate(given.tools or ()):
        if one.type == "function":  # others were left out
            name = joined_name(one.namespace, one.name)
            named.append(known_tool(name, tools, f"tool_choice.tools[{number}].name"))
    modes: dict[str, Literal["auto", "required", "none"]] = {"required": "required", "none": "none"}
    return ReplySpec(
        tuple(tool for tool in tools if tool.name in named), tool_choice=modes.get(given.mode, "auto")
    )
