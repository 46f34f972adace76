"""From the body of a request to what a turn is asked. Pure; whatever is refused is refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from connections.openai.problems import Problem, invalid
from connections.openai.unserved import refuse_unserved, says
from connections.openai.wire import ChatMessage, ChatRequest, Part
from connections.wire import frames, params
from connections.wire.errors import BadParams
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

# Two passes, and neither makes objects of what is not served: millions of empty lists fit a body.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_request = msgspec.json.Decoder(ChatRequest).decode


def chat_request(body: bytes) -> ChatRequest:
    """The request, whose fields have their types. Raises Problem."""
    try:
        refuse_unserved(_fields(body))
        return _request(body)
    except msgspec.ValidationError as error:
        raise _ill_typed(str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise invalid(None, "The body is no JSON object.", code="invalid_json") from None


def ask_of(request: ChatRequest, limits: frames.Limits) -> Ask:
    """The messages and how to answer them. Raises Problem."""
    if not request.messages:
        raise invalid("messages", "messages: is empty.")
    messages = tuple(_messages(request.messages, limits.max_content_chars))
    length = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    asked = frames.Params(
        max_new_tokens=getattr(request, length),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        repetition_penalty=request.repetition_penalty,
        seed=request.seed,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
    )
    try:
        generation = params.generation(asked, max_new_tokens=limits.max_new_tokens)
    except BadParams as error:
        raise _out_of_range(str(error), length) from None
    return Ask(messages, msgspec.structs.replace(generation.params, top_logprobs=_top_logprobs(request)))


def _top_logprobs(request: ChatRequest) -> int | None:
    """How many of the likeliest tokens are to be told beside each one; None where nothing of the kind is."""
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"top_logprobs: {top} is not within 0 to {MAX_TOP_LOGPROBS}.")
    if top and not request.logprobs:
        raise invalid("top_logprobs", "top_logprobs: is for requests whose logprobs is true.")
    return top if request.logprobs else None


def _messages(messages: list[ChatMessage], max_chars: int) -> Iterator[Message]:
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        for field in ("tool_calls", "function_call", "audio"):
            if not says(getattr(message, field), ([],)):
                raise invalid(
                    f"{where}.{field}", f"{where}.{field}: is not served.", code="unsupported_parameter"
                )
        if (role := _ROLES.get(message.role)) is None:
            raise invalid(f"{where}.role", f"{where}.role: {message.role!r} is not served.")
        content = _text(message, where)
        if len(content) > max_chars and role != "assistant":
            why = f"{where}.content: {len(content)} characters are more than {max_chars}."
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
            raise invalid(f"{where}.content", f"{where}.content: is missing.")


def _part(part: Part, where: str) -> str:
    if part.type != "text":
        raise invalid(f"{where}.type", f"{where}.type: {part.type!r} is not served.")
    if part.text is None:
        raise invalid(f"{where}.text", f"{where}.text: is missing.")
    return part.text


def _ill_typed(complaint: str) -> Problem:
    """What is wrong with a JSON object that is no request; the complaint ends with the place, or names a missing field."""
    what, _, place = complaint.partition(" - at `$")
    param = place.removeprefix(".").removesuffix("`")
    if "required field `" in what:
        missing = what.rpartition("required field `")[2].removesuffix("`")
        param = f"{param}.{missing}" if param else missing
        return invalid(param, f"{param}: is missing.", code="missing_required_parameter")
    return invalid(param or None, f"{param or 'The body'}: {what}.", code="invalid_type")


def _out_of_range(complaint: str, length: str) -> Problem:
    field, _, why = complaint.removeprefix("params.").partition(": ")
    field = length if field == "max_new_tokens" else field
    return invalid(field, f"{field}: {why}")
