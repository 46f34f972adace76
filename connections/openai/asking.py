"""From the body of a request to what a turn is asked. Pure; whatever is refused is refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from connections.http.json_shape import check_shape
from connections.openai.problems import Problem, invalid
from connections.openai.unserved import NO_TOOLS, no_part, refuse_unserved, says
from connections.openai.wire import ChatMessage, ChatRequest, Part
from connections.wire import frames, params
from connections.wire.errors import BadParams
from connections.wire.sentences import complaint, worded
from engine.messages import Message
from sessions.running.ephemeral import Ask

Role = Literal["system", "user", "assistant"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 2048
OFF = -1
"""Of `top_k` and `seed`: none, as vLLM and llama.cpp have it."""
_CALLS = {
    "tool_calls": NO_TOOLS,
    "function_call": NO_TOOLS,
    "audio": "This server does not speak: replies are text.",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Two passes, and neither makes objects of what is not served: millions of empty lists fit a body.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_request = msgspec.json.Decoder(ChatRequest).decode


def chat_request(body: bytes) -> ChatRequest:
    """The request, whose fields have their types. Raises Problem, TooManyValues."""
    body = body.removeprefix(_BYTE_ORDER_MARK)
    check_shape(body)
    try:
        refuse_unserved(_fields(body))
        return _request(body)
    except msgspec.ValidationError as error:
        raise _ill_typed(error) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise invalid(None, "The body is not a JSON object.", code="invalid_json") from None


def ask_of(request: ChatRequest, limits: frames.Limits) -> Ask:
    """The messages and how to answer them. Raises Problem."""
    if not request.messages:
        raise invalid("messages", "`messages` must have at least one message.")
    if len(request.messages) > MAX_MESSAGES:
        raise invalid("messages", f"`messages` may have at most {MAX_MESSAGES} messages.")
    messages = tuple(_messages(request.messages, limits.max_content_chars))
    length = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    asked = frames.Params(
        max_new_tokens=getattr(request, length),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=0 if request.top_k == OFF else request.top_k,
        repetition_penalty=request.repetition_penalty,
        seed=None if request.seed == OFF else request.seed,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
    )
    try:
        generation = params.generation(asked, max_new_tokens=limits.max_new_tokens)
    except BadParams as error:
        raise _out_of_range(error, length) from None
    params_of = msgspec.structs.replace(generation.params, top_logprobs=_top_logprobs(request))
    return Ask(messages, params_of, affinity=request.prompt_cache_key or "")


def _top_logprobs(request: ChatRequest) -> int | None:
    """How many of the likeliest tokens are to be told beside each one; None where nothing of the kind is."""
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"`top_logprobs` must be from 0 to {MAX_TOP_LOGPROBS}.")
    if top and not request.logprobs:
        raise invalid("top_logprobs", "`top_logprobs` is for requests whose `logprobs` is true.")
    return top if request.logprobs else None


def _messages(messages: list[ChatMessage], max_chars: int) -> Iterator[Message]:
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        for field, refused in _CALLS.items():
            if not says(getattr(message, field), ([],)):
                raise invalid(f"{where}.{field}", refused, code="unsupported_parameter")
        if (role := _ROLES.get(message.role)) is None:
            raise _no_role(message.role, f"{where}.role")
        content = _text(message, where)
        if len(content) > max_chars and role != "assistant":
            why = f"The message is too long: it has {len(content)} characters, and {max_chars} are allowed."
            raise invalid(f"{where}.content", why, code="content_too_long")
        yield Message(role, content)


def _text(message: ChatMessage, where: str) -> str:
    match message.content:
        case str() as text:
            return text
        case list() as parts:
            return "\n".join(_part(part, f"{where}.content[{number}]") for number, part in enumerate(parts))
        case None if message.role == "assistant":
            return ""
        case None:
            raise invalid(f"{where}.content", worded(f"{where}.content", "is missing."))


def _part(part: Part, where: str) -> str:
    if part.type != "text":
        raise invalid(f"{where}.type", no_part(part.type))
    if part.text is None:
        raise invalid(f"{where}.text", worded(f"{where}.text", "is missing."))
    return part.text


def _no_role(role: str, field: str) -> Problem:
    if role in ("tool", "function"):
        return invalid(field, NO_TOOLS)
    return invalid(field, worded(field, "must be system, developer, user or assistant."))


def _ill_typed(error: msgspec.ValidationError) -> Problem:
    """What is wrong with a JSON object that is no request."""
    wrong = complaint(error)
    code = "missing_required_parameter" if wrong.is_missing else "invalid_type"
    return invalid(wrong.field, wrong.told(whole="The body"), code=code)


def _out_of_range(error: BadParams, length: str) -> Problem:
    field = (error.field or "").removeprefix("params.")
    field = length if field == "max_new_tokens" else field
    return invalid(field, worded(field, error.why))
