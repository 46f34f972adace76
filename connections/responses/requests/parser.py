"""Converts the body of a request to what a turn is asked. Pure; a refusal names the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from connections.api.chat_parser import MAX_TOP_LOGPROBS, params_of
from connections.api.errors import invalid
from connections.api.fields import decode_request, is_neutral, schema_text
from connections.protocol.errors import field_message
from connections.protocol.server_info import Limits
from connections.responses.requests.items import messages_of
from connections.responses.requests.mcp_servers import McpServer
from connections.responses.requests.models import Creation, Metadata
from connections.responses.requests.tools import ignored_tools, tools_spec
from engine.messages import Message
from engine.reply_spec import Format, JsonObject, JsonSchema, ReplySpec
from sessions.running.ephemeral import EphemeralRequest

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
MAX_METADATA = 16
MAX_KEY_CHARS = 64
MAX_VALUE_CHARS = 512
_EFFORT = re.compile(r"[a-z]{1,16}\Z")
_EFFORTS = {"none": "off", "auto": "auto", "default": "auto"}
_NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "prompt": ((), "This server keeps no prompts: send `instructions` and `input`."),
    "generate": ((True,), "This server writes a reply to each request: leave `generate` out."),
    "moderation": ((), "This server asks no other model to moderate: its operator's filters apply."),
    "n": ((1,), "A response is one reply: `n` must be 1."),
}

_creation = msgspec.json.Decoder(Creation).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def parse_response_request(body: bytes) -> Creation:
    """Return the request in a body, with checked types. Raises Problem, TooManyValues."""
    request = decode_request(body, _decoded)
    check_metadata(request.metadata or {})
    if request.truncation not in (None, "auto", "disabled"):
        raise invalid("truncation", field_message("truncation", "must be auto or disabled."))
    return request


def response_turn_request(
    request: Creation, limits: Limits, before: Sequence[Message] = (), servers: Sequence[McpServer] = ()
) -> EphemeralRequest:
    """Return what a turn without a conversation is asked. `before`: messages before the input; `servers`: for tools.

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
            where = "text.format.schema"
            schema = None if given is None else schema_text(given.schema, where)
            if schema is None:
                raise invalid(where, field_message(where, "is missing."))
            return JsonSchema(schema)
        case _:
            field = "text.format.type"
            raise invalid(field, field_message(field, "must be text, json_object or json_schema."))


def field_names() -> dict[str, str]:
    """Return the client's names of fields that the layers below name otherwise."""
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
    fields = _fields(body)
    for field, (neutral, why) in _NEUTRAL.items():
        if (raw := fields.get(field)) is not None and not is_neutral(raw, neutral):
            raise invalid(field, why, code="unsupported_parameter")
    return _creation(body)


def _reasoning_of(request: Creation) -> str:
    """Return the reasoning: `auto`, `off` or an effort."""
    effort = (request.reasoning.effort if request.reasoning is not None else None) or "auto"
    if not _EFFORT.match(effort):
        field = "reasoning.effort"
        raise invalid(field, field_message(field, "must be none, or a word like low, medium or high."))
    return _EFFORTS.get(effort, effort)


def _top_logprobs(request: Creation) -> int | None:
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", field_message("top_logprobs", f"must be from 0 to {MAX_TOP_LOGPROBS}."))
    return top if includes_logprobs(request) else None


def check_metadata(metadata: Metadata) -> None:
    """Raise Problem if there are too many values, or too long ones."""
    fits = all(len(key) <= MAX_KEY_CHARS and len(value) <= MAX_VALUE_CHARS for key, value in metadata.items())
    if len(metadata) > MAX_METADATA or not fits:
        why = (
            f"may have at most {MAX_METADATA} values, of {MAX_VALUE_CHARS} characters, "
            f"with keys of {MAX_KEY_CHARS}."
        )
        raise invalid("metadata", field_message("metadata", why))
