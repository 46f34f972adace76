"""A request in the shape of OpenAI's chat completions or completions, and an estimate of its prompt's length. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import ceil
from typing import Any

import msgspec

from engine.errors import PromptRejected
from engine.history import UNKNOWN, TemplateRules, normalized
from engine.messages import Message, Params, Request, ToolCall
from engine.reply_spec import PLAIN, Format, Grammar, JsonObject, JsonSchema, Regex, ReplySpec, Tool
from engine.upstream.options import Features, UpstreamOptions
from engine.vision.image import Image, in_order

TOKENS_A_MESSAGE = 4
"""About how many tokens a chat template puts around a message or a tool."""


def estimated_tokens(messages: Sequence[Message], bytes_per_token: float, spec: ReplySpec = PLAIN) -> int:
    """Estimate a prompt's length without a tokenizer: its UTF-8 bytes divided by those of a token, and its frame.

    With three bytes a token the estimate is rather too high, since today's vocabularies have four or more for English,
    and three for most other scripts. Raises PromptRejected if there is no message, or one that is not text.
    """
    if not messages:
        raise PromptRejected("There is no message to answer.")
    try:
        size = sum(map(_size, messages)) + sum(map(_tool_size, spec.shown_tools))
    except UnicodeEncodeError as error:
        raise PromptRejected(f"The messages are no text: {error}") from error
    framed = 0 if spec.raw else len(messages) + len(spec.shown_tools)
    return ceil(size / bytes_per_token) + TOKENS_A_MESSAGE * framed + seen_tokens(messages)


def seen_tokens(messages: Sequence[Message]) -> int:
    """Return about how many tokens the images of a prompt take."""
    return sum(image.tokens for message in messages for image in message.images)


def _size(message: Message) -> int:
    calls = sum(len(call.name.encode()) + len(call.arguments.encode()) for call in message.calls)
    return len(message.content.encode()) + calls


def _tool_size(tool: Tool) -> int:
    return len(tool.name.encode()) + len(tool.description.encode()) + len(tool.parameters.encode())


def most_new_tokens(requested: int | None, options: UpstreamOptions, prompt_tokens: int) -> int:
    """Return the most tokens of the reply: what was asked for, as far as the window has room."""
    return max(1, min(requested or options.max_new_tokens, options.context_tokens - prompt_tokens))


def path_of(request: Request) -> str:
    """Return the path of a request, relative to the URL."""
    return "completions" if request.spec.raw else "chat/completions"


def body_of(request: Request, options: UpstreamOptions, max_new_tokens: int) -> dict[str, Any]:
    """Return the body of `POST /chat/completions`, or of `POST /completions` for a raw prompt."""
    features, spec = options.features, request.spec
    newer = features.max_completion_tokens and not spec.raw
    limit = "max_completion_tokens" if newer else "max_tokens"
    body: dict[str, Any] = {
        "model": options.model,
        **prompt_of(request.messages, spec, features),
        "stream": True,
        limit: max_new_tokens,
        **_sampling(request.params, features),
        **_logprobs(request, features),
        **_format(spec.format, features),
    }
    if features.usage or features.continuous_usage:
        body["stream_options"] = {"include_usage": True}
        if features.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if features.priority != "off":
        body["priority"] = request.priority if features.priority == "high_first" else -request.priority
    if features.prompt_cache_key and (session := session_of(request)) is not None:
        body["prompt_cache_key"] = session
    if features.cache_salt and request.cache_salt:
        body["cache_salt"] = _digest(request.cache_salt)
    return body


def prompt_of(messages: Sequence[Message], spec: ReplySpec, features: Features) -> dict[str, Any]:
    """Return the fields that make the prompt, which replies and counts have in common."""
    if spec.raw:
        return {"prompt": "".join(message.content for message in messages)}
    known = normalized(
        messages, TemplateRules() if features.any_history else UNKNOWN, continues=spec.continues
    )
    return {
        "messages": [_message(message, thinks=features.template) for message in known],
        **_tools(spec),
        **_thinking(spec, features),
        **({"continue_final_message": True, "add_generation_prompt": False} if spec.continues else {}),
    }


def _message(message: Message, *, thinks: bool) -> dict[str, Any]:
    """Return a message in OpenAI's shape. `thinks`: it has its thoughts, under both of their names."""
    fields: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.role == "tool":
        fields["tool_call_id"] = message.call_id
    if message.reasoning and thinks:
        fields |= {"reasoning_content": message.reasoning, "reasoning": message.reasoning}
    if message.calls:
        fields["content"] = message.content or None
        fields["tool_calls"] = [_call(call) for call in message.calls]
    return fields


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.content
    return [_part(part) for part in in_order(message.content, message.images)]


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if part.detail else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _tools(spec: ReplySpec) -> dict[str, Any]:
    if not spec.shown_tools:
        return {}
    named = {"type": "function", "function": {"name": spec.tool_name}}
    choice = named if spec.tool_choice == "named" else spec.tool_choice
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in spec.shown_tools], "tool_choice": choice}
    return fields if spec.parallel_calls else {**fields, "parallel_tool_calls": False}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": msgspec.Raw(tool.parameters.encode()),
    }
    return {"type": "function", "function": function}


def _thinking(spec: ReplySpec, features: Features) -> dict[str, Any]:
    """Return the fields for reasoning. `reasoning_effort` is `none` for no reasoning."""
    fields: dict[str, Any] = {}
    variables = dict(spec.template)
    if spec.reasoning != "auto" and features.reasoning:
        fields["reasoning_effort"] = "none" if spec.reasoning in ("off", "least") else spec.reasoning
    if spec.reasoning in ("off", "least") and features.template:
        variables = {"enable_thinking": False, "thinking": False} | variables
    return fields | ({"chat_template_kwargs": variables} if variables else {})


def _format(format_: Format | None, features: Features) -> dict[str, Any]:
    match format_:
        case None:
            return {}
        case JsonObject():
            return {"response_format": {"type": "json_object"}}
        case JsonSchema(schema):
            named = {"name": "reply", "strict": True, "schema": msgspec.Raw(schema.encode())}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case Regex(pattern):
            return _named_format("regex", pattern, features)
        case Grammar(lark):
            return _named_format("grammar", lark, features)


def _named_format(name: str, text: str, features: Features) -> dict[str, Any]:
    match features.format:
        case "guided":
            return {f"guided_{name}": text}
        case "sglang":
            return {name: text}
        case _:
            return {"structured_outputs": {name: text}}


def session_of(request: Request) -> str | None:
    """Return a digest of the conversation and its owner, which reveals neither; None if there is no conversation."""
    return _digest(f"{request.cache_salt}\n{request.conversation}") if request.conversation else None


def _sampling(params: Params, features: Features) -> dict[str, Any]:
    """Return the sampling fields. Those that the upstream lacks were refused before, or change nothing."""
    greedy = params.do_sample is False or params.temperature == 0
    chosen = {
        "temperature": 0.0 if greedy else params.temperature,
        "top_p": None if greedy else params.top_p,
        "top_k": params.top_k if features.top_k and not greedy else None,
        "min_p": params.min_p if features.min_p and not greedy else None,
        "repetition_penalty": params.repetition_penalty if features.repetition_penalty else None,
        "presence_penalty": params.presence_penalty if features.penalties else None,
        "frequency_penalty": params.frequency_penalty if features.penalties else None,
        "logit_bias": {str(token): bias for token, bias in params.logit_bias} or None,
        "min_tokens": params.min_tokens if features.min_tokens else None,
        "ignore_eos": params.ignore_eos if features.ignore_eos else None,
        "skip_special_tokens": False if params.special_tokens and features.special_tokens else None,
        "seed": params.seed,
        "stop": list(params.stop) or None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _logprobs(request: Request, features: Features) -> dict[str, Any]:
    top = request.params.top_logprobs
    if top is None or not features.logprobs:
        return {}
    return {"logprobs": top} if request.spec.raw else {"logprobs": True, "top_logprobs": top}


def _digest(text: str) -> str:
    """Return a digest, since salts and conversations hold clients' ids, which an upstream must not read."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
