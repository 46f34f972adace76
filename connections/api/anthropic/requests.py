"""Anthropic's requests, as far as supported (API reference: Messages, Count tokens), and their conversion for turns. Pure.

A refusal names the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar, assert_never

import msgspec

from connections.api.requests import (
    BOUNDED_ROLES,
    EFFORT,
    NeutralValues,
    Problem,
    check_images,
    check_length,
    check_messages,
    check_tool_count,
    checked_name,
    decode_body,
    image_at,
    image_not_allowed,
    image_of,
    invalid,
    invalid_field,
    known_tool,
    null,
    reject_fields,
    required,
    required_schema,
    unique_tools,
)
from connections.protocol import frames, params
from connections.protocol.base import Limits
from connections.protocol.errors import BadParams
from engine.messages import JsonSchema, Message, Params, ReplySpec, ToolCall
from engine.messages import Tool as EngineTool
from engine.vision.image import Image, joined
from sessions.running.ephemeral import EphemeralRequest

THREADS = "thread_unsupported_request"
"""Code of a refusal after which Anthropic's SDKs continue without threads."""
FIELD_NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "stop": "stop_sequences",
    "format": "output_config.format",
    "reasoning": "output_config.effort",
    "template": "thinking",
    "continues": "messages",
    "tool_calls": "messages",
    "role": "messages",
    "images": "messages",
}
"""Anthropic's names of fields that lower layers name differently."""
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_UNSUPPORTED: NeutralValues = {
    "container": ((), "Containers are not supported."),
    "mcp_servers": (
        ([],),
        "Server tools are not available in this API: pass `tools` and run them in the client.",
    ),
    "context_management": (
        ({"edits": []}, _KEEPS_ALL),
        "Context editing is not supported: leave `context_management` out.",
    ),
    "thread": ((), "Threads are not stored: send all messages."),
    "inference_geo": ((), "Inference regions are not supported: leave `inference_geo` out."),
}
"""Fields that would change the reply, or promise what is not done here; and for each the values that change nothing."""
# Two passes, and neither makes objects of unsupported fields.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_UNSUPPORTED_BLOCKS = {
    "document": "Documents are not supported: send their text.",
    "search_result": "Search result blocks are not supported: send their text.",
    "container_upload": "Containers are not supported.",
}
_ONLY_BLOCKS = "This server takes blocks of text, of images, of thinking, of calls (tool_use) and of their results (tool_result) only."
TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Blocks of system messages that change which tools are offered from there on."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_CLIENT_TOOL_TYPES = (None, "custom")
"""Types of tools that the client runs."""


class ResultBlock(msgspec.Struct, frozen=True):
    """A part of a tool's result: `text`, `tool_reference` (a tool that a search found), or a type that is refused."""

    type: str
    text: str | None = None
    tool_name: str | None = None


class Source(msgspec.Struct, frozen=True):
    """The source of an image or a document: `base64`, `url`, or another."""

    type: str
    media_type: str = ""
    data: str | None = None
    url: str | None = None


class ToolReference(msgspec.Struct, frozen=True):
    """The tool that a change is about: `tool_reference`, or another type, which is refused."""

    type: str
    name: str = ""


class InputBlock(msgspec.Struct, frozen=True):
    """A part of a message: `text`, `image`, `thinking`, `tool_use`, `tool_result`, or a type that is refused.

    System messages may also have `tool_addition` and `tool_removal`.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=null)
    tool_use_id: str | None = None
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None
    source: Source | None = None
    tool: ToolReference | None = None


class InputMessage(msgspec.Struct, frozen=True):
    """A message of a request. `clear_at`: `next_user_message` hides a system message once a later user message exists."""

    role: str
    content: str | list[InputBlock]
    clear_at: str | None = None


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `input_schema`: a JSON Schema of an object. Tools of others have another `type`.

    `defer_loading` has no effect: the model is shown all tools from the start.
    """

    name: str = ""
    description: str | None = None
    input_schema: msgspec.Raw = msgspec.field(default_factory=null)
    strict: bool | None = None
    type: str | None = None


class ToolUseChoice(msgspec.Struct, frozen=True):
    """`auto`, `any`, `tool` (the named one) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    """`enabled`, `disabled` or `adaptive`. `display`: with `omitted` no reasoning is sent."""

    type: str
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """A JSON Schema for the reply."""

    type: str
    schema: msgspec.Raw = msgspec.field(default_factory=null)


class OutputConfig(msgspec.Struct, frozen=True):
    """The format of the reply, and how much effort goes into it."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `POST /v1/messages/count_tokens`: all parts of a prompt.

    `cache_control` has no effect: prompts are cached in any case.
    """

    model: str
    messages: list[InputMessage]
    system: str | list[ResultBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolUseChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


class RequestMetadata(msgspec.Struct, frozen=True):
    """The user for whom an application asks."""

    user_id: str | None = None


class MessageRequest(CountRequest, frozen=True, kw_only=True):
    """A request of `POST /v1/messages`. `metadata` names the user; `service_tier` has no effect here."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: RequestMetadata | None = None

    @property
    def shows_reasoning(self) -> bool:
        """Whether reasoning is sent."""
        return self.thinking is None or self.thinking.display != "omitted"


T = TypeVar("T", CountRequest, MessageRequest)
_message_request = msgspec.json.Decoder(MessageRequest).decode
_count_request = msgspec.json.Decoder(CountRequest).decode


def parse_message_request(body: bytes) -> MessageRequest:
    """Return a request for a reply, with checked types. Raises Problem, TooManyValues."""
    return _request(body, _message_request)


def parse_count_request(body: bytes) -> CountRequest:
    """Return a request for a count. Raises Problem, TooManyValues."""
    return _request(body, _count_request)


def message_turn_request(request: MessageRequest, limits: Limits) -> EphemeralRequest:
    """Return the messages and how to answer them. Raises Problem."""
    messages, spec = _prompt(request, limits)
    user = request.metadata.user_id if request.metadata else None
    ignored = ignored_tools(request.tools)
    return EphemeralRequest(
        messages,
        _params(request, limits),
        user=user or "",
        spec=spec,
        ignored=ignored,
        streams=bool(request.stream),
    )


def count_turn_request(request: CountRequest, limits: Limits) -> EphemeralRequest:
    """Return messages and tools. Raises Problem."""
    messages, spec = _prompt(request, limits)
    return EphemeralRequest(messages, spec=spec)


def _request(body: bytes, decode: Callable[[bytes], T]) -> T:
    def checked(text: bytes) -> T:
        text.decode()  # the decoder does not check the UTF-8 of raw fields
        reject_fields(_fields(text), _UNSUPPORTED, {"thread": THREADS})
        return decode(text)

    return decode_body(body, checked)


def _prompt(request: CountRequest, limits: Limits) -> tuple[tuple[Message, ...], ReplySpec]:
    messages = messages_of(request.messages, request.system, limits)
    return messages, _spec(request, messages)


def _spec(request: CountRequest, messages: tuple[Message, ...]) -> ReplySpec:
    spec = tools_spec(request.tools, request.tool_choice, request.messages)
    last = messages[-1]
    if last.role == "assistant" and last.calls:
        raise invalid("messages", "`messages` ends with tool calls: add their results (tool_result).")
    config = request.output_config or OutputConfig()
    schema = None if spec.must_call else _schema(config)
    thinking = "adaptive" if request.thinking is None else request.thinking.type
    if thinking not in ("enabled", "disabled", "adaptive"):
        raise invalid_field("thinking.type", "must be enabled, disabled or adaptive.")
    effort = "auto" if config.effort is None else config.effort
    if thinking == "disabled":
        effort = "off"
    if not EFFORT.match(effort):
        raise invalid_field("output_config.effort", "must be a word like low, medium or high.")
    return msgspec.structs.replace(
        spec,
        format=None if schema is None else JsonSchema(schema),
        reasoning=effort,
        template={"enable_thinking": True} if thinking == "enabled" else {},
        continues=last.role == "assistant",
    )


def _schema(config: OutputConfig) -> str | None:
    if config.format is None:
        return None
    where = "output_config.format"
    if config.format.type != "json_schema":
        raise invalid_field(f"{where}.type", "must be json_schema.")
    return required_schema(config.format.schema, f"{where}.schema")


def _params(request: MessageRequest, limits: Limits) -> Params:
    """Return the parameters. A length beyond the server's limit becomes that limit. Raises Problem."""
    requested = frames.Params(
        max_new_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=tuple(request.stop_sequences or ()),
    )
    try:
        return params.generation(requested, max_new_tokens=limits.max_new_tokens).params
    except BadParams as error:
        field = (error.field or "").removeprefix("params.")
        raise invalid_field(FIELD_NAMES.get(field, field), error.why) from None


def messages_of(
    given: Sequence[InputMessage], system: str | Sequence[ResultBlock] | None, limits: Limits
) -> tuple[Message, ...]:
    """Return the system prompt and the messages. Neighbours of one role are joined. Raises Problem."""
    check_messages(given)
    converted = [_system(system, "system")] if system else []
    last_user = max((number for number, message in enumerate(given) if message.role == "user"), default=-1)
    for number, message in enumerate(given):
        if message.role != "system" or message.clear_at != "next_user_message" or number > last_user:
            converted += _message(message, f"messages[{number}].content", number, limits)
    messages = tuple(_merged(converted))
    if not messages:
        raise invalid("messages", "`messages` has no message to answer.")
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
            raise invalid_field(f"messages[{number}].role", "must be user, assistant or system.")


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
            raise invalid_field(where, "must be of the type base64.")
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
                reasoning_parts.append(required(block.thinking, f"{place}.thinking"))
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
    call_id = checked_name(required(block.id, f"{where}.id"), f"{where}.id")
    name = checked_name(required(block.name, f"{where}.name"), f"{where}.name")
    text = bytes(block.input)
    if not text.startswith(b"{"):
        raise invalid_field(f"{where}.input", "must be an object.")
    return ToolCall(call_id, name, msgspec.json.format(text, indent=-1).decode())


def _result(block: InputBlock, where: str, limits: Limits) -> Message:
    call_id = required(block.tool_use_id, f"{where}.tool_use_id")
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
    return required(block.text, f"{where}.text")


def _result_text(block: ResultBlock, where: str) -> str:
    if block.type == "tool_reference":
        place = f"{where}.tool_name"
        return f"Tool available: {checked_name(required(block.tool_name, place), place)}"
    if block.type != "text":
        raise _no_part(block.type, f"{where}.type")
    return required(block.text, f"{where}.text")


def _no_part(kind: str, where: str) -> Problem:
    return invalid(where, _UNSUPPORTED_BLOCKS.get(kind, _ONLY_BLOCKS))


def _merged(messages: Sequence[Message]) -> Iterator[Message]:
    """Join adjacent messages of one role, except results. Texts are joined once, however many blocks there are."""
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
        if message.role in BOUNDED_ROLES:
            check_length(message.content, "system" if message.role == "system" else "messages", max_chars)
        call_ids.update(call.call_id for call in message.calls)
        if message.role == "tool" and message.call_id not in call_ids:
            why = "`messages` has a tool_result whose `tool_use_id` matches no earlier tool_use."
            raise invalid("messages", why)


def tools_spec(
    given: Sequence[ClientTool] | None, choice: ToolUseChoice | None, messages: Sequence[InputMessage] = ()
) -> ReplySpec:
    """Return the tools that `messages` did not withdraw, and how to choose among them. Raises Problem."""
    withdrawn = _removed_tools(given or (), messages)
    tools = tuple(tool for tool in _tools(given or ()) if tool.name not in withdrawn)
    kind = "auto" if choice is None else choice.type
    if not tools and kind in ("any", "tool"):
        raise invalid_field("tool_choice", "requires `tools`.")
    if not tools:
        return ReplySpec()
    parallel = choice is None or not choice.disable_parallel_tool_use
    match kind:
        case "auto" | "none":
            return ReplySpec(tools=tools, tool_choice=kind, parallel_calls=parallel)
        case "any":
            return ReplySpec(tools=tools, tool_choice="required", parallel_calls=parallel)
        case "tool":
            name = known_tool((choice.name if choice else None) or "", tools, "tool_choice.name")
            return ReplySpec(tools=tools, tool_choice="named", tool_name=name, parallel_calls=parallel)
        case _:
            raise invalid_field("tool_choice.type", "must be auto, any, tool or none.")


def _tools(given: Sequence[ClientTool]) -> Iterable[EngineTool]:
    check_tool_count(given)
    return unique_tools(
        (f"tools[{number}].name", _tool(one, f"tools[{number}]"))
        for number, one in enumerate(given)
        if one.type in _CLIENT_TOOL_TYPES
    ).values()


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
                raise invalid_field(where, "must be of the type tool_reference.")
            if block.tool.name not in declared:
                raise invalid_field(f"{where}.name", "is not the name of one of `tools`.")
            (names.add if block.type == "tool_removal" else names.discard)(block.tool.name)
    return names


def ignored_tools(given: Sequence[ClientTool] | None) -> tuple[str, ...]:
    """Return the places of tools that Anthropic's servers run."""
    return tuple(
        f"tools[{number}]" for number, tool in enumerate(given or ()) if tool.type not in _CLIENT_TOOL_TYPES
    )


def _tool(tool: ClientTool, where: str) -> EngineTool:
    if not _NAME.match(tool.name):
        raise invalid_field(f"{where}.name", "must have 1 to 128 letters, digits, _ or -.")
    schema = required_schema(tool.input_schema, f"{where}.input_schema")
    return EngineTool(tool.name, tool.description or "", schema, strict=bool(tool.strict))
