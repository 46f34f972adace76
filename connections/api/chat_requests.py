"""Chat requests, as far as supported, and their conversion to turns' requests. Pure; a refusal names the field.

The fields have OpenAI's names (API reference: Chat). Besides these there are those of vLLM, SGLang, Ollama and
DeepSeek that have an effect here. Other dialects convert their requests to these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from connections.api.requests import (
    BOUNDED_ROLES,
    IMAGES,
    check_images,
    check_length,
    check_messages,
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
    is_neutral,
    known_tool,
    null,
    required,
    required_schema,
    schema_text,
    unique_tools,
    unsupported_part,
)
from connections.protocol import frames, params
from connections.protocol.base import Limits
from connections.protocol.errors import BadParams
from engine.messages import (
    Format,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    Params,
    Regex,
    ReplySpec,
    TemplateValue,
    Tool,
    ToolCall,
)
from engine.vision.image import Image, Seen, joined
from sessions.running.ephemeral import EphemeralRequest

_MAX_COMPLETION_TOKENS = "max_completion_tokens"
MAX_PATTERN_CHARS = 4096
MAX_GRAMMAR_CHARS = 65_536
MAX_CHOICES = 256
_REGEX_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_NULL = b"null"
_TOO_MANY = "Only one response format is allowed: leave `{}` out."
RequestedFormat = tuple[str, Format]
"""The field that asks, and its format."""
Role = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REFUSED = {
    "function_call": "`function_call` is not supported: use `tool_calls`.",
    "audio": "Spoken replies are not supported: replies are text.",
}
_REASONING_PARTS = ("reasoning", "thinking")
MAX_VARIABLES = 32
MAX_VALUE_CHARS = 4096
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables of a template that come from other fields, or can't be set."""
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_TOKEN_ID = 2**31 - 1
OFF = -1
"""Turns `top_k` or `seed` off, as in vLLM and llama.cpp."""
_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("min_p", lambda n: 0 <= n <= 1, "from 0 to 1"),
    ("presence_penalty", lambda n: -2 <= n <= 2, "from -2 to 2"),  # noqa: PLR2004 - OpenAI's range
    ("frequency_penalty", lambda n: -2 <= n <= 2, "from -2 to 2"),  # noqa: PLR2004 - OpenAI's range
)
_FUNCTION = "function"


class ImageUrl(msgspec.Struct, frozen=True):
    """An image in a `data:` URL. `detail`: how closely the model should look at it."""

    url: str
    detail: str | None = None


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content: text, an image, or an assistant's reasoning."""

    type: str
    text: str | None = None
    thinking: str | None = None
    image_url: ImageUrl | str | None = None


class MessageFunction(msgspec.Struct, frozen=True):
    """A function that was called. `arguments`: the text of a JSON object."""

    name: str
    arguments: str = "{}"


class MessageCall(msgspec.Struct, frozen=True):
    """A call in an assistant's message."""

    function: MessageFunction
    id: str = ""
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a request. `reasoning` is vLLM's newer name for `reasoning_content`; `function_call` is refused."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: msgspec.Raw = msgspec.field(default_factory=null)
    audio: msgspec.Raw = msgspec.field(default_factory=null)


class Function(msgspec.Struct, frozen=True):
    """A function that may be called. `parameters`: a JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.field(default_factory=null)


class FunctionTool(msgspec.Struct, frozen=True):
    """A tool of a request."""

    function: Function | None = None
    type: str = "function"


class FunctionName(msgspec.Struct, frozen=True):
    """Names a function."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """Names a tool."""

    function: FunctionName
    type: str = "function"


class AllowedTools(msgspec.Struct, frozen=True):
    """Some of the tools, and whether one of them has to be called."""

    tools: list[NamedTool]
    mode: str = "auto"


class ToolChoice(msgspec.Struct, frozen=True):
    """The one function to call, or the tools that may be called."""

    type: str = "function"
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class NamedSchema(msgspec.Struct, frozen=True):
    """A JSON Schema. A reply always follows it, whatever the `strict` that OpenAI's clients send."""

    schema: msgspec.Raw = msgspec.field(default_factory=null)


class ResponseFormat(msgspec.Struct, frozen=True):
    """The format of a reply: `text`, `json_object` or `json_schema`."""

    type: str
    json_schema: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's fields for a format: set one. `json`: a JSON Schema, or its text; `grammar`: Lark as in llguidance."""

    json: msgspec.Raw = msgspec.field(default_factory=null)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw = msgspec.field(default_factory=null)


class Reasoning(msgspec.Struct, frozen=True):
    """OpenRouter's fields for reasoning. `exclude`: it is not sent."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """DeepSeek's field for the same: `enabled` or `disabled`."""

    type: str


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None


class BaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chat completions and responses have in common.

    `top_k`, `repetition_penalty`, `min_p`, `min_tokens`, `ignore_eos` and `skip_special_tokens` come from other servers.
    """

    model: str
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @property
    def cached_for(self) -> str:
        """The application's name for its user: prompts of others are cached apart."""
        return self.prompt_cache_key or self.safety_identifier or self.user or ""


class ChatRequest(BaseRequest, frozen=True, kw_only=True):
    """A request of `POST /v1/chat/completions`. `verbosity` has no effect.

    `structured_outputs` and the fields that begin with `guided_` are vLLM's.
    """

    messages: list[ChatMessage]
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = msgspec.field(default_factory=null)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    think: bool | str | None = None
    thinking: Thinking | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_chat = msgspec.json.Decoder(ChatRequest).decode


def parse_chat_request(body: bytes) -> ChatRequest:
    """Return a request of the chat's endpoint, with checked types. Raises Problem, TooManyValues."""
    return decode_request(body, _chat)


def chat_turn_request(request: ChatRequest, limits: Limits) -> EphemeralRequest:
    """Return the messages and how to answer them. Raises Problem."""
    return EphemeralRequest(
        messages_of(request.messages, limits),
        params_of(request, limits, length=_length(request), top_logprobs=_top_logprobs(request)),
        affinity=request.prompt_cache_key or "",
        user=request.cached_for,
        spec=_spec(request),
        ignored=(
            *ignored_tools(request.tools),
            *(("verbosity",) if request.verbosity not in (None, "medium") else ()),
        ),
        streams=bool(request.stream),
    )


def field_names(request: ChatRequest) -> dict[str, str]:
    """Return the client's names of fields that lower layers name differently."""
    found = format_of(request)
    return {
        "max_new_tokens": _length(request),
        "special_tokens": "skip_special_tokens",
        "continues": "continue_final_message",
        "format": found[0] if found else "response_format",
        "reasoning": reasoning_of(request)[1] or "reasoning_effort",
        "template": template_field(request),
        "tool_calls": "messages",
        "role": "messages",
        "images": "messages",
    }


def _spec(request: ChatRequest) -> ReplySpec:
    """Return the requirements of the reply. Raises Problem."""
    spec, found = tools_spec(request), format_of(request)
    return msgspec.structs.replace(
        spec,
        format=found[1] if found and not spec.must_call else None,
        reasoning=reasoning_of(request)[0],
        template=template_of(request),
        continues=_continues(request),
    )


def _continues(request: ChatRequest) -> bool:
    """Return whether to continue the last message, as in vLLM. The template begins no new one. Raises Problem."""
    adds_prompt, continues = request.add_generation_prompt is not False, bool(request.continue_final_message)
    if adds_prompt and continues:
        raise invalid_field("continue_final_message", "requires `add_generation_prompt` to be false.")
    if not adds_prompt and not continues:
        raise invalid_field("add_generation_prompt", "can be false only with `continue_final_message`.")
    if continues and (request.messages[-1].role != "assistant" or request.messages[-1].tool_calls):
        why = "requires an assistant message without calls at the end."
        raise invalid_field("continue_final_message", why)
    return continues


def _length(request: ChatRequest) -> str:
    """Return the field that limits the length of a reply."""
    return "max_tokens" if request.max_completion_tokens is None else _MAX_COMPLETION_TOKENS


def _top_logprobs(request: ChatRequest) -> int | None:
    """Return how many of the likeliest tokens to send with each one; None: no log-probabilities."""
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"`top_logprobs` must be from 0 to {MAX_TOP_LOGPROBS}.")
    if top and not request.logprobs:
        raise invalid("top_logprobs", "`top_logprobs` requires `logprobs` to be true.")
    return top if request.logprobs else None


def format_of(request: ChatRequest) -> RequestedFormat | None:
    """Return the one requested format, after its field; None: text. Raises Problem."""
    found = list(_formats(request))
    if len(found) > 1:
        raise invalid(found[1][0], _TOO_MANY.format(found[1][0]))
    return found[0] if found else None


def _formats(request: ChatRequest) -> Iterator[RequestedFormat]:
    if request.response_format is not None:
        yield from _response_format(request.response_format)
    if request.structured_outputs is not None:
        yield from _structured(request.structured_outputs)
    yield from _vllm_formats(
        "guided_",
        StructuredOutputs(
            json=request.guided_json,
            regex=request.guided_regex,
            choice=request.guided_choice,
            grammar=request.guided_grammar,
        ),
    )


def _response_format(given: ResponseFormat) -> Iterator[RequestedFormat]:
    match given.type:
        case "text":
            return
        case "json_object":
            yield "response_format", JsonObject()
        case "json_schema":
            raw = null() if given.json_schema is None else given.json_schema.schema
            yield "response_format", JsonSchema(required_schema(raw, "response_format.json_schema.schema"))
        case _:
            raise invalid_field("response_format.type", "must be text, json_object or json_schema.")


def _structured(given: StructuredOutputs) -> Iterator[RequestedFormat]:
    where = "structured_outputs.structural_tag"
    if bytes(given.structural_tag) != _NULL:
        why = "`structured_outputs.structural_tag` is not supported."
        raise invalid(where, why, code="unsupported_parameter")
    if given.json_object:
        yield "structured_outputs.json_object", JsonObject()
    yield from _vllm_formats("structured_outputs.", given)


def _vllm_formats(prefix: str, given: StructuredOutputs) -> Iterator[RequestedFormat]:
    if (schema := schema_text(given.json, where := f"{prefix}json", as_text=True)) is not None:
        yield where, JsonSchema(schema)
    if given.regex is not None:
        yield (where := f"{prefix}regex"), Regex(_bounded_text(given.regex, where, MAX_PATTERN_CHARS))
    if given.choice is not None:
        yield (where := f"{prefix}choice"), Regex(_choice_pattern(given.choice, where))
    if given.grammar is not None:
        yield (where := f"{prefix}grammar"), Grammar(_bounded_text(given.grammar, where, MAX_GRAMMAR_CHARS))


def _bounded_text(text: str, where: str, most: int) -> str:
    if not 0 < len(text) <= most:
        raise invalid_field(where, f"must have 1 to {most} characters.")
    return text


def _choice_pattern(texts: Sequence[str], where: str) -> str:
    """Return a pattern that matches exactly these texts."""
    if not 0 < len(texts) <= MAX_CHOICES or not all(texts):
        raise invalid_field(where, f"must have 1 to {MAX_CHOICES} non-empty strings.")
    pattern = "|".join(_REGEX_SPECIAL.sub(r"\\\g<0>", text) for text in texts)
    return _bounded_text(f"({pattern})", where, MAX_PATTERN_CHARS)


def messages_of(given: Sequence[ChatMessage], limits: Limits) -> tuple[Message, ...]:
    """Return the messages. Raises Problem."""
    check_messages(given)
    messages = tuple(_messages(given, limits))
    check_images(messages, "messages", limits)
    return messages


def _messages(given: Sequence[ChatMessage], limits: Limits) -> Iterator[Message]:
    call_ids: set[str] = set()
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        converted = _message(message, where, limits)
        if converted.role in BOUNDED_ROLES:
            check_length(converted.content, f"{where}.content", limits.max_content_chars)
        call_ids.update(call.call_id for call in converted.calls)
        if converted.role == "tool" and converted.call_id not in call_ids:
            raise invalid_field(f"{where}.tool_call_id", "matches no call of an earlier message.")
        yield converted


def _message(message: ChatMessage, where: str, limits: Limits) -> Message:
    for field, refused in _REFUSED.items():
        if not is_neutral(getattr(message, field), ([],)):
            raise invalid(f"{where}.{field}", refused, code="unsupported_parameter")
    if (role := _ROLES.get(message.role)) is None:
        if message.role == "function":
            raise invalid(f"{where}.role", "The role function is not supported: use tool.")
        raise invalid_field(f"{where}.role", "must be system, developer, user, assistant or tool.")
    (content, images), reasoning_text = _content(message, where, limits)
    if role != "assistant":
        if message.tool_calls:
            raise invalid_field(f"{where}.tool_calls", "is allowed in assistant messages only.")
        call_id = required(message.tool_call_id or None, f"{where}.tool_call_id") if role == "tool" else ""
        return Message(role, content, call_id=call_id, images=images)
    reasoning_text = message.reasoning_content or message.reasoning or reasoning_text
    return Message(
        role, content, reasoning=reasoning_text, calls=tuple(_calls(message.tool_calls or [], where))
    )


def _calls(given: Sequence[MessageCall], where: str) -> Iterator[ToolCall]:
    for number, call in enumerate(given):
        place = f"{where}.tool_calls[{number}]"
        if call.type != "function":
            raise invalid_field(f"{place}.type", "must be function.")
        yield ToolCall(
            checked_name(call.id, f"{place}.id"),
            checked_name(call.function.name, f"{place}.function.name"),
            checked_arguments(call.function.arguments, f"{place}.function.arguments"),
        )


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
            raise invalid_field(f"{where}.content", "is missing.")


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
        text = required(text, f"{place}.text")
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


def reasoning_of(request: ChatRequest) -> tuple[str, str]:
    """Return the reasoning (`auto`, `off` or an effort) and its field, empty if there is none. Raises Problem."""
    for field, effort in _requested_efforts(request):
        if (known := checked_effort(effort, field)) != "auto":
            return known, field
    return "auto", ""


def template_of(request: ChatRequest) -> dict[str, TemplateValue]:
    """Return the variables of the chat template. Raises Problem."""
    variables: dict[str, TemplateValue] = {}
    is_enabled = (
        request.enable_thinking
        or request.think is True
        or (request.thinking is not None and request.thinking.type == "enabled")
        or (request.reasoning is not None and request.reasoning.enabled)
    )
    if is_enabled:
        variables["enable_thinking"] = True
    given = request.chat_template_kwargs or {}
    if len(given) > MAX_VARIABLES:
        raise invalid_field("chat_template_kwargs", f"may have at most {MAX_VARIABLES} variables.")
    for name, value in given.items():
        if not _VARIABLE.match(name) or name in _RESERVED:
            why = "has a name that is not allowed for a template variable."
            raise invalid_field("chat_template_kwargs", why)
        if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
            why = f"may have at most {MAX_VALUE_CHARS} characters."
            raise invalid_field(f"chat_template_kwargs.{name}", why)
    return variables | given


def template_field(request: ChatRequest) -> str:
    """Return the field with variables of the template."""
    if request.chat_template_kwargs:
        return "chat_template_kwargs"
    fields = {
        "enable_thinking": request.enable_thinking,
        "think": request.think,
        "thinking": request.thinking,
    }
    return next((field for field, value in fields.items() if value), "reasoning")


def shows_reasoning(request: ChatRequest) -> bool:
    """Return whether reasoning is sent."""
    is_excluded = request.reasoning is not None and request.reasoning.exclude
    return request.include_reasoning is not False and not is_excluded


def _requested_efforts(request: ChatRequest) -> Iterator[tuple[str, str]]:
    if request.reasoning_effort is not None:
        yield "reasoning_effort", request.reasoning_effort
    if (reasoning := request.reasoning) is not None:
        yield "reasoning.effort", reasoning.effort or "auto"
        yield "reasoning", "off" if reasoning.enabled is False else "auto"
    if request.think is not None:
        yield "think", request.think if isinstance(request.think, str) else _word(request.think)
    if request.thinking is not None:
        yield "thinking", {"disabled": "off", "enabled": "auto"}.get(request.thinking.type, "")
    if request.enable_thinking is not None:
        yield "enable_thinking", _word(request.enable_thinking)


def _word(thinks: bool) -> str:  # noqa: FBT001 - as it stands in the request
    return "auto" if thinks else "off"


def params_of(request: BaseRequest, limits: Limits, *, length: str, top_logprobs: int | None) -> Params:
    """Return the sampling parameters. `length`: the field that limits the length. Raises Problem."""
    for field, fits, wanted in _RANGES:
        value = getattr(request, field)
        if value is not None and not fits(value):
            raise invalid_field(field, f"must be {wanted}.")
    most = limits.max_new_tokens
    if not 0 <= (request.min_tokens or 0) <= most:
        raise invalid_field("min_tokens", f"must be from 0 to {most}.")
    requested = frames.Params(
        max_new_tokens=getattr(request, length),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=0 if request.top_k == OFF else request.top_k,
        repetition_penalty=request.repetition_penalty,
        seed=None if request.seed == OFF else request.seed,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
    )
    try:
        generation = params.generation(requested, max_new_tokens=most)
    except BadParams as error:
        field = (error.field or "").removeprefix("params.")
        raise invalid_field(length if field == "max_new_tokens" else field, error.why) from None
    return msgspec.structs.replace(
        generation.params,
        top_logprobs=top_logprobs,
        min_p=request.min_p or None,
        presence_penalty=request.presence_penalty or None,
        frequency_penalty=request.frequency_penalty or None,
        logit_bias=_biases(request.logit_bias or {}),
        min_tokens=request.min_tokens or None,
        ignore_eos=request.ignore_eos or None,
        special_tokens=True if request.skip_special_tokens is False else None,
    )


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_BIASES:
        raise invalid_field("logit_bias", f"may have at most {MAX_BIASES} tokens.")
    if not all(-MAX_BIAS <= value <= MAX_BIAS for value in given.values()):
        raise invalid_field("logit_bias", f"must have values from -{MAX_BIAS} to {MAX_BIAS}.")
    return tuple((_token(name), value) for name, value in given.items())


def _token(name: str) -> int:
    if not (
        name.isascii()
        and name.isdecimal()
        and len(name) <= len(str(MAX_TOKEN_ID))
        and int(name) <= MAX_TOKEN_ID
    ):
        raise invalid_field("logit_bias", "must have token IDs as keys.")
    return int(name)


def tools_spec(request: ChatRequest) -> ReplySpec:
    """Return the tools of a request, and how to choose among them. Raises Problem."""
    given = request.tools or []
    check_tool_count(given)
    tools = unique_tools(
        (f"tools[{number}].function.name", _tool(one, f"tools[{number}].function"))
        for number, one in enumerate(given)
        if one.type == _FUNCTION
    )
    chosen = _choice(request.tool_choice, tuple(tools.values()))
    return chosen_spec(chosen, parallel_calls=request.parallel_tool_calls is not False)


def ignored_tools(given: Sequence[FunctionTool] | None) -> tuple[str, ...]:
    """Return the places of tools that are not functions: only other vendors' servers run them."""
    return tuple(f"tools[{number}]" for number, tool in enumerate(given or ()) if tool.type != _FUNCTION)


def _tool(tool: FunctionTool, where: str) -> Tool:
    if (function := tool.function) is None:
        raise invalid_field(where, "is missing.")
    return function_tool(function.name, function.description, function.parameters, where)


def _choice(given: str | ToolChoice | None, tools: tuple[Tool, ...]) -> ReplySpec:
    match given:
        case None:
            return ReplySpec(tools)
        case "auto" | "none" | "required":
            return ReplySpec(tools, tool_choice=given)
        case ToolChoice(type="allowed_tools", allowed_tools=AllowedTools() as allowed):
            return _allowed(allowed, tools)
        case ToolChoice(type="function", function=named) if named is not None:
            name = known_tool(named.name, tools, "tool_choice.function.name")
            return ReplySpec(tools, tool_choice="named", tool_name=name)
        case _:
            raise invalid_field("tool_choice", "must be auto, none, required, or a function of `tools`.")


def _allowed(allowed: AllowedTools, tools: tuple[Tool, ...]) -> ReplySpec:
    where = "tool_choice.allowed_tools"
    if allowed.mode not in ("auto", "required"):
        raise invalid_field(f"{where}.mode", "must be auto or required.")
    names = {
        known_tool(one.function.name, tools, f"{where}.tools[{number}].function.name")
        for number, one in enumerate(allowed.tools)
    }
    mode: Literal["auto", "required"] = "required" if allowed.mode == "required" else "auto"
    return ReplySpec(tuple(tool for tool in tools if tool.name in names), tool_choice=mode)
