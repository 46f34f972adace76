"""Converts the body of a request to what a turn is asked. Pure; a refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from connections.api.errors import Problem, invalid
from connections.api.fields import is_neutral, schema_text
from connections.http.json_limits import check_json_limits
from connections.messages.blocks import messages_of
from connections.messages.models import CountRequest, MessageRequest, OutputConfig, ThinkingConfig
from connections.messages.problems import THREADS
from connections.messages.tools import ignored_tools, tools_spec
from connections.protocol import frames, params
from connections.protocol.errors import BadParams, field_message, validation_problem
from connections.protocol.server_info import Limits
from engine.messages import Message, Params
from engine.reply_spec import JsonSchema, ReplySpec
from sessions.running.ephemeral import EphemeralRequest

T = TypeVar("T", CountRequest, MessageRequest)

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
"""This client's names of fields that the layers below name otherwise."""
_EFFORT = re.compile(r"[a-z]{1,16}\Z")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_UNSUPPORTED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "container": ((), "This server has no containers."),
    "mcp_servers": (
        ([],),
        "This server calls no tools for its clients here: give the model `tools`, and run them.",
    ),
    "context_management": (
        ({"edits": []}, _KEEPS_ALL),
        "This server does not edit what you send: leave `context_management` out.",
    ),
    "thread": ((), "This server keeps no threads: send all messages."),
    "inference_geo": ((), "This server can't choose where it runs: leave `inference_geo` out."),
}
"""Fields that would change the reply, or promise what is not done here; and for each the values that change nothing."""

# Two passes, and neither makes objects of unsupported fields.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_message = msgspec.json.Decoder(MessageRequest).decode
_count = msgspec.json.Decoder(CountRequest).decode


def parse_message_request(body: bytes) -> MessageRequest:
    """Return a request for a reply, with checked types. Raises Problem, TooManyValues."""
    return _request(body, _message)


def parse_count_request(body: bytes) -> CountRequest:
    """Return a request for a count. Raises Problem, TooManyValues."""
    return _request(body, _count)


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
    """Return the messages alone. Raises Problem."""
    messages, spec = _prompt(request, limits)
    return EphemeralRequest(messages, spec=spec)


def _request(body: bytes, decode: Callable[[bytes], T]) -> T:
    body = body.removeprefix(_BYTE_ORDER_MARK)
    check_json_limits(body)
    try:
        body.decode()  # the decoder does not check fields that are read later
        _reject_unsupported(_fields(body))
        return decode(body)
    except msgspec.ValidationError as error:
        wrong = validation_problem(error)
        raise invalid(wrong.field, wrong.full_message(whole="The body"), code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise invalid(None, "The body is not a JSON object.", code="invalid_json") from None


def _reject_unsupported(fields: Mapping[str, msgspec.Raw]) -> None:
    for field, (neutral, why) in _UNSUPPORTED.items():
        if field in fields and not is_neutral(fields[field], neutral):
            raise invalid(field, why, code=THREADS if field == "thread" else "unsupported_parameter")


def _prompt(request: CountRequest, limits: Limits) -> tuple[tuple[Message, ...], ReplySpec]:
    messages = messages_of(request.messages, request.system, limits)
    return messages, _spec(request, messages)


def _spec(request: CountRequest, messages: tuple[Message, ...]) -> ReplySpec:
    spec = tools_spec(request.tools, request.tool_choice, request.messages)
    last = messages[-1]
    if last.role == "assistant" and last.calls:
        raise invalid("messages", "`messages` end with calls: their results (tool_result) are missing.")
    config = request.output_config or OutputConfig()
    schema = None if spec.must_call else _schema(config)
    return msgspec.structs.replace(
        spec,
        format=None if schema is None else JsonSchema(schema),
        reasoning=_reasoning(request.thinking, config.effort),
        template={"enable_thinking": True} if _kind(request.thinking) == "enabled" else {},
        continues=last.role == "assistant",
    )


def _schema(config: OutputConfig) -> str | None:
    if config.format is None:
        return None
    where = "output_config.format"
    if config.format.type != "json_schema":
        raise invalid(f"{where}.type", field_message(f"{where}.type", "must be json_schema."))
    schema = schema_text(config.format.schema, f"{where}.schema")
    if schema is None:
        raise invalid(f"{where}.schema", field_message(f"{where}.schema", "is missing."))
    return schema


def _kind(thinking: ThinkingConfig | None) -> str:
    """Return whether there is reasoning, as one word. Raises Problem."""
    if thinking is None:
        return "adaptive"
    if thinking.type not in ("enabled", "disabled", "adaptive"):
        raise invalid(
            "thinking.type", field_message("thinking.type", "must be enabled, disabled or adaptive.")
        )
    return thinking.type


def _reasoning(thinking: ThinkingConfig | None, effort: str | None) -> str:
    if _kind(thinking) == "disabled":
        return "off"
    if effort is not None and not _EFFORT.match(effort):
        where = "output_config.effort"
        raise invalid(where, field_message(where, "must be a word like low, medium or high."))
    return effort or "auto"


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
        raise _out_of_range(error) from None


def _out_of_range(error: BadParams) -> Problem:
    field = (error.field or "").removeprefix("params.")
    field = FIELD_NAMES.get(field, field)
    return invalid(field, field_message(field, error.why))
