"""Requests of the Responses API, as far as supported (OpenAI; Open Responses), and their conversion to a turn's request. Pure.

A refusal names the field. The tools of MCP servers are the operator's, by the names in the server file: no URL of a request is
used. The operator's functions are tools of the server `midstream`.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from connections.api.chat_requests import MAX_TOP_LOGPROBS, BaseRequest, params_of
from connections.api.requests import (
    IMAGES,
    MAX_TOOLS,
    ONLY_USER_IMAGES,
    NeutralValues,
    Problem,
    check_images,
    check_length,
    check_tool_count,
    checked_arguments,
    checked_effort,
    checked_name,
    chosen_spec,
    decode_request,
    image_at,
    image_not_allowed,
    invalid,
    invalid_field,
    known_tool,
    null,
    reject_fields,
    required,
    required_schema,
    schema_text,
    unique_tools,
    unsupported_part,
)
from connections.protocol.base import Limits
from connections.protocol.params import server_tool
from engine.messages import Format, JsonObject, JsonSchema, Message, ReplySpec, ToolCall
from engine.messages import Tool as EngineTool
from engine.vision.image import Image, Seen, joined
from sessions.limits.bounds import MAX_MESSAGES
from sessions.running.ephemeral import EphemeralRequest
from sessions.tools.tool_registry import ServerTool, ToolRegistry
from sessions.turn.message_request import OfferedTool

Metadata = dict[str, str]
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
MAX_METADATA = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512
_NEUTRAL: NeutralValues = {
    "prompt": ((), "Stored prompts are not supported: send `instructions` and `input`."),
    "generate": ((True,), "`generate` is not supported: leave it out."),
    "moderation": ((), "Moderation models are not supported: the operator's filters apply."),
    "n": ((1,), "`n` must be 1: a response is one reply."),
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
_NO_SUMMARY = "has a summary that this server did not produce."
SUMMARY = "What was said before, as a summary:"
_NO_APPROVAL = (
    "names no approval that the response before this one asks for: send that as `previous_response_id`."
)
_MCP_ITEMS = ("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response")
_FOREIGN_REASONING = "has reasoning that this server did not produce: leave the item out."
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ANYTHING = '{"type":"object","properties":{}}'
Tools = tuple[EngineTool, ...]
OPERATOR_FUNCTIONS = "midstream"
"""The label of the operator's own functions."""
_NOT_FORWARDED = "is not supported: the operator configures the MCP servers. Leave it out."
_UNREACHABLE = "The server is unavailable: its tools return when it reconnects."


class Part(msgspec.Struct, frozen=True):
    """A part of an item's content: a text, an image in a `data:` URL, or an assistant's refusal."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class Item(msgspec.Struct, frozen=True):
    """An item of the input: a message, a call, its result, reasoning, or a reference to a stored item.

    It may also be the answer to an approval: `approve`, with `approval_request_id`.
    """

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
    error: msgspec.Raw = msgspec.field(default_factory=null)
    server_label: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None


class ToolNames(msgspec.Struct, frozen=True):
    """Some tools of an MCP server. `read_only`, by the server's own annotations, is not supported."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class Approvals(msgspec.Struct, frozen=True):
    """The tools of an MCP server whose calls need an approval, and those whose calls do not."""

    always: ToolNames | None = None
    never: ToolNames | None = None


class Tool(msgspec.Struct, frozen=True):
    """A function, several in a `namespace`, or tools of an MCP server (`mcp`), that may be called.

    `parameters`: a JSON Schema of an object. `strict` has no effect, as at the chat's endpoint. `server_label`:
    the operator's name of the server; `server_url` is ignored. `authorization`, `headers`: refused, since
    they are not passed on. `tools`: the functions of a namespace.
    """

    type: str
    name: str | None = None
    tools: list[Tool] | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None
    server_label: str | None = None
    server_url: str | None = None
    server_description: str | None = None
    allowed_tools: list[str] | ToolNames | None = None
    require_approval: str | Approvals | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    connector_id: str | None = None


class NamedTool(msgspec.Struct, frozen=True):
    """Names a function, or a tool of an MCP server."""

    name: str = ""
    namespace: str | None = None
    type: str = "function"
    server_label: str | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """The tool to call, or the tools that may be called, and whether one must be."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str = "auto"
    tools: list[NamedTool] | None = None
    server_label: str | None = None


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

    `max_tool_calls` has no effect, and is refused with MCP servers. Of `include`, `message.output_text.logprobs` and
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
    background: bool | None = None
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
    request: Creation, limits: Limits, before: Sequence[Message] = (), servers: Sequence[McpServer] = ()
) -> EphemeralRequest:
    """Return the request of a turn without conversation. `before`: messages before the input; `servers`: for tools.

    Raises Problem.
    """
    given = messages_of(request.input, limits, before)
    system = [Message("system", request.instructions)] if request.instructions else []
    return EphemeralRequest(
        (*system, *before, *given),
        params_of(request, limits, length="max_output_tokens", top_logprobs=_top_logprobs(request)),
        affinity=request.prompt_cache_key or "",
        user=request.cached_for,
        spec=spec_of(request, servers),
        ignored=(*ignored_tools(request.tools), *_unsupported_hints(request)),
    )


def _unsupported_hints(request: Creation) -> Iterator[str]:
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        yield "text.verbosity"


def spec_of(request: Creation, servers: Sequence[McpServer] = ()) -> ReplySpec:
    """Return the requirements of the reply. Raises Problem."""
    spec, found = tools_spec(request, servers), format_of(request)
    return msgspec.structs.replace(
        spec, format=None if spec.must_call else found, reasoning=_reasoning_of(request)
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


def includes_encrypted_reasoning(request: Creation) -> bool:
    """Return whether reasoning also comes as a text for the client to send back."""
    return ENCRYPTED_REASONING in (request.include or ())


def _decoded(body: bytes) -> Creation:
    reject_fields(_fields(body), _NEUTRAL)
    return _creation(body)


def _reasoning_of(request: Creation) -> str:
    """Return the reasoning: `auto`, `off` or an effort."""
    effort = request.reasoning.effort if request.reasoning is not None else None
    return checked_effort(effort or "auto", "reasoning.effort")


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
        """Yield the message, if any, and results; begin another."""
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
        raise invalid_field(f"{where}.id", "matches no call of a server tool.")
    if named not in call_ids:
        reply.calls.append(_call(msgspec.structs.replace(item, call_id=named), where))
        call_ids.add(named)
    if kind == "mcp_call":
        reply.allowed.pop(named, None)
        text = item.output if isinstance(item.output, str) else _error_text(item)
        reply.results.append(Message("tool", text, call_id=named))


def _no_approval(where: str) -> Problem:
    return invalid_field(f"{where}.approval_request_id", _NO_APPROVAL, code="approval_not_found")


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
                raise invalid_field(f"{where}.call_id", "matches no earlier call.")
            return Message("tool", _text(item.output, f"{where}.output"), call_id=item.call_id or "")
        case "compaction":
            field = f"{where}.encrypted_content"
            if (summary := decode_opaque(item.encrypted_content or "")) is None:
                raise invalid_field(field, _NO_SUMMARY)
            return Message("user", f"{SUMMARY}\n{summary}")
        case _:
            raise invalid(f"{where}.type", f"Unsupported item type: {kind[:64]}.")


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
    check_length(text, field, limits.max_content_chars)
    return Message(role, text, images=images)


def _text_or_image(part: Part, where: str, limits: Limits) -> Seen:
    return ("", (_image(part, where, limits),)) if part.type in IMAGES else (_part(part, where), ())


def _image(part: Part, where: str, limits: Limits) -> Image:
    if part.file_id is not None and part.image_url is None and limits.max_images:
        raise invalid(f"{where}.file_id", "Files are not supported: send the image in a `data:` URL.")
    return image_at(part.image_url, f"{where}.image_url", limits, detail=part.detail)


def _role(item: Item, where: str) -> Literal["system", "user", "assistant"]:
    if (role := _ROLES.get(item.role or "")) is None:
        raise invalid_field(f"{where}.role", "must be system, developer, user or assistant.")
    return role


def _call(item: Item, where: str) -> ToolCall:
    call_id = checked_name(item.call_id, f"{where}.call_id")
    name = joined_name(item.namespace, checked_name(item.name, f"{where}.name"))
    return ToolCall(call_id, name, checked_arguments(item.arguments, f"{where}.arguments"))


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


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Return messages as the bytes that limits count, images included."""
    return msgspec.json.encode(messages)


def tools_spec(request: Creation, servers: Sequence[McpServer] = ()) -> ReplySpec:
    """Return the tools, and how to choose among them. `servers`: the MCP servers among them. Raises Problem."""
    chosen = _tool_choice(request.tool_choice, tools_of(request.tools or [], servers))
    return chosen_spec(chosen, parallel_calls=request.parallel_tool_calls is not False)


def tools_of(given: Sequence[Tool], servers: Sequence[McpServer] = ()) -> Tools:
    """Return the functions, and after them the tools of servers. Raises Problem."""
    check_tool_count(given)
    tools = unique_tools(
        (f"{where}.name", _tool(one, space, where)) for where, space, one in _functions(given)
    )
    for server in servers:
        for offered in server.offered:
            if offered.tool.name in tools:
                raise invalid("tools", f'Two of `tools` have the name "{offered.tool.name}".')
            tools[offered.tool.name] = offered.tool
    check_tool_count(tools)
    return tuple(tools.values())


def ignored_tools(given: Sequence[Tool] | None) -> tuple[str, ...]:
    """Return the places of tools that only OpenAI's servers run, at most `MAX_TOOLS`."""
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
    """Yield all tools, with a namespace's tools in its place."""
    for number, tool in enumerate(given):
        if tool.type != "namespace":
            yield f"tools[{number}]", None, tool
            continue
        for place, one in enumerate(tool.tools or ()):
            yield f"tools[{number}].tools[{place}]", tool.name or "", one


def _tool(tool: Tool, namespace: str | None, where: str) -> EngineTool:
    name = joined_name(namespace, tool.name)
    if namespace is not None and not _NAME.match(name):
        why = "must have letters, digits, _ or -, and with its namespace and __ between them 64 at most."
        raise invalid_field(f"{where}.name", why)
    if not _NAME.match(tool.name or ""):
        raise invalid_field(f"{where}.name", "must have 1 to 64 letters, digits, _ or -.")
    parameters = schema_text(tool.parameters, f"{where}.parameters")
    return EngineTool(name, tool.description or "", parameters or _ANYTHING)


def _tool_choice(given: str | ToolChoice | None, tools: Tools) -> ReplySpec:
    match given:
        case None:
            return ReplySpec(tools)
        case "auto" | "none" | "required":
            return ReplySpec(tools, tool_choice=given)
        case ToolChoice(type="function" | "mcp", name=str() as called):
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
        if one.type in ("function", "mcp"):  # others were left out
            name = joined_name(one.namespace, one.name)
            named.append(known_tool(name, tools, f"tool_choice.tools[{number}].name"))
    modes: dict[str, Literal["auto", "required", "none"]] = {"required": "required", "none": "none"}
    return ReplySpec(
        tuple(tool for tool in tools if tool.name in named), tool_choice=modes.get(given.mode, "auto")
    )


class McpServer(msgspec.Struct, frozen=True):
    """The tools of one server that a request may call. `error`: why there are none now."""

    label: str
    tools: tuple[ServerTool, ...]
    offered: tuple[OfferedTool, ...]
    error: str | None = None


def mcp_servers(given: Sequence[Tool], box: ToolRegistry) -> tuple[McpServer, ...]:
    """Return the servers of a request. Raises Problem."""
    found = tuple(
        _mcp_server(tool, f"tools[{number}]", box) for number, tool in enumerate(given) if tool.type == "mcp"
    )
    labels = [one.label for one in found]
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise invalid("tools", f'`tools` may name the server "{label[:64]}" once.')
    return found


def _mcp_server(tool: Tool, where: str, box: ToolRegistry) -> McpServer:
    for field in ("authorization", "headers", "connector_id"):
        if getattr(tool, field):
            raise invalid_field(f"{where}.{field}", _NOT_FORWARDED, code="unsupported_parameter")
    label = tool.server_label or ""
    found = box.of_server("" if label == OPERATOR_FUNCTIONS else label) if label else None
    if found is None:
        raise _unknown(label, f"{where}.server_label", box)
    if not found:
        return McpServer(label, (), (), _UNREACHABLE)
    is_allowed = _tool_filter(tool.allowed_tools, f"{where}.allowed_tools", found)
    tools = tuple(one for one in found if is_allowed is None or is_allowed(one))
    wants_approval = _approval_rule(tool.require_approval, f"{where}.require_approval", found)
    return McpServer(
        label, tools, tuple(server_tool(one, wants_approval=wants_approval(one)) for one in tools)
    )


def _approval_rule(
    given: str | Approvals | None, where: str, found: Sequence[ServerTool]
) -> Callable[[ServerTool], bool]:
    """Return a test whether a tool needs an approval; by default all do. Raises Problem."""
    match given:
        case None | "always":
            return lambda _: True
        case "never":
            return lambda _: False
        case Approvals(always=always, never=never):
            is_always = _tool_filter(always, f"{where}.always", found)
            is_never = _tool_filter(never, f"{where}.never", found)
            return lambda tool: not (is_never and is_never(tool)) or bool(is_always and is_always(tool))
        case _:
            raise invalid_field(where, "must be always, never, or name tools by `always` and `never`.")


def _tool_filter(
    given: list[str] | ToolNames | None, where: str, found: Sequence[ServerTool]
) -> Callable[[ServerTool], bool] | None:
    """Return a test whether a list has a tool's name here or at its server; None without a list. Raises Problem."""
    if isinstance(given, ToolNames):
        if given.read_only is not None:
            why = "is not supported: list the tools by name."
            raise invalid_field(f"{where}.read_only", why, code="unsupported_parameter")
        given, where = given.tool_names, f"{where}.tool_names"
    if given is None:
        return None
    names = set(given)
    for number, name in enumerate(given):
        if not any(name in _names(tool) for tool in found):
            raise invalid_field(
                f"{where}[{number}]", f"names no tool of the server: it has {_some_names(found)}."
            )
    return lambda tool: not names.isdisjoint(_names(tool))


def _names(tool: ServerTool) -> tuple[str, ...]:
    return (tool.name, tool.named_there) if tool.named_there else (tool.name,)


def _some_names(found: Sequence[ServerTool]) -> str:
    names = [tool.name for tool in found]
    return ", ".join([*names[:8], *(["…"] if len(names) > 8 else [])])  # noqa: PLR2004 - a sentence is short


def _unknown(label: str, where: str, box: ToolRegistry) -> Problem:
    has = ", ".join(_labels(box)) or "none"
    why = (
        f'Unknown MCP server: "{label[:64]}". The operator configures MCP servers; one may not have been reached yet. '
        f"Available: {has}."
    )
    return invalid(where, why, code="unsupported_parameter")


def _labels(box: ToolRegistry) -> Iterator[str]:
    yield from box.servers
    if box.of_server(""):
        yield OPERATOR_FUNCTIONS
