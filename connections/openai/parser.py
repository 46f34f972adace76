"""Converts the body of a request to what turns are asked. Pure; a refusal names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from connections.http.json_limits import check_json_limits
from connections.openai.problems import Problem, invalid
from connections.openai.requests.formats import format_of
from connections.openai.requests.messages import messages_of
from connections.openai.requests.models import BaseRequest, ChatRequest, CompletionRequest
from connections.openai.requests.reasoning import reasoning_of, template_field, template_of
from connections.openai.requests.sampling import MAX_TOP_LOGPROBS, params_of, replies_of
from connections.openai.requests.tools import ignored_tools, tools_spec
from connections.openai.unsupported import reject_unsupported
from connections.protocol.errors import field_message, validation_problem
from connections.protocol.server_info import Limits
from engine.messages import Message
from engine.reply_spec import ReplySpec
from sessions.running.ephemeral import MAX_REPLIES, EphemeralRequest

T = TypeVar("T")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_COMPLETION_TOKENS = "max_completion_tokens"

# Two passes, and neither makes objects of unsupported fields: millions of empty lists fit a body.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_chat = msgspec.json.Decoder(ChatRequest).decode
_completion = msgspec.json.Decoder(CompletionRequest).decode


def parse_chat_request(body: bytes) -> ChatRequest:
    """Return a request of the chat's endpoint, with checked types. Raises Problem, TooManyValues."""
    return decode_request(body, _chat)


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Return a request of the completions' endpoint. Raises Problem, TooManyValues."""
    return decode_request(body, _completion)


def decode_request(body: bytes, decode: Callable[[bytes], T]) -> T:
    """Return the request in a body, as `decode` reads it. Raises Problem, TooManyValues."""
    body = body.removeprefix(_BYTE_ORDER_MARK)
    check_json_limits(body)
    try:
        reject_unsupported(_fields(body))
        return decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_type(error) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise invalid(None, "The body is not a JSON object.", code="invalid_json") from None


def chat_turn_request(request: ChatRequest, limits: Limits) -> EphemeralRequest:
    """Return the messages and how to answer them. Raises Problem."""
    return EphemeralRequest(
        messages_of(request.messages, limits),
        params_of(request, limits, length=_length(request), top_logprobs=_top_logprobs(request)),
        affinity=request.prompt_cache_key or "",
        user=request.cached_for,
        spec=_spec(request),
        replies=replies_of(request),
        ignored=(
            *ignored_tools(request.tools),
            *(("verbosity",) if request.verbosity not in (None, "medium") else ()),
        ),
        streams=bool(request.stream),
    )


def completion_turn_requests(request: CompletionRequest, limits: Limits) -> list[EphemeralRequest]:
    """Return the prompts, unchanged, and how to continue each. Raises Problem."""
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    if not 0 < len(prompts) <= MAX_REPLIES or not all(prompts):
        why = f"must be a text, or 1 to {MAX_REPLIES} of them, none of them empty."
        raise invalid("prompt", field_message("prompt", why))
    found = format_of(request)
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
        raise invalid("logprobs", field_message("logprobs", f"must be from 0 to {MAX_TOP_LOGPROBS}."))
    params = params_of(request, limits, length="max_tokens", top_logprobs=request.logprobs)
    spec = ReplySpec(raw=True, format=found[1] if found else None)
    replies, affinity = replies_of(request, len(prompts)), request.prompt_cache_key or ""
    return [
        EphemeralRequest(
            (Message("user", prompt),),
            params,
            affinity=affinity,
            user=request.cached_for,
            spec=spec,
            replies=replies,
        )
        for prompt in prompts
    ]


def field_names(request: BaseRequest) -> dict[str, str]:
    """Return the client's names of fields that the layers below name otherwise."""
    found = format_of(request)
    names = {
        "max_new_tokens": "max_tokens",
        "special_tokens": "skip_special_tokens",
        "continues": "continue_final_message",
        "raw": "prompt",
        "format": found[0] if found else "response_format",
    }
    if isinstance(request, ChatRequest):
        names |= {
            "max_new_tokens": _length(request),
            "reasoning": reasoning_of(request)[1] or "reasoning_effort",
            "template": template_field(request),
            "tool_calls": "messages",
            "role": "messages",
            "images": "messages",
        }
    return names


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
    """Return whether to continue the last message, as in vLLM. The template then begins no other. Raises Problem."""
    adds_prompt, continues = request.add_generation_prompt is not False, bool(request.continue_final_message)
    if adds_prompt and continues:
        why = "needs `add_generation_prompt` to be false."
        raise invalid("continue_final_message", field_message("continue_final_message", why))
    if not adds_prompt and not continues:
        why = "can be false together with `continue_final_message` alone."
        raise invalid("add_generation_prompt", field_message("add_generation_prompt", why))
    if continues and (request.messages[-1].role != "assistant" or request.messages[-1].tool_calls):
        why = "needs a message of the role assistant, without calls, as the last one."
        raise invalid("continue_final_message", field_message("continue_final_message", why))
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
        raise invalid("top_logprobs", "`top_logprobs` is for requests whose `logprobs` is true.")
    return top if request.logprobs else None


def _invalid_type(error: msgspec.ValidationError) -> Problem:
    """Return what is wrong with a JSON object that is not a request."""
    wrong = validation_problem(error)
    code = "missing_required_parameter" if wrong.is_missing else "invalid_type"
    return invalid(wrong.field, wrong.full_message(whole="The body"), code=code)
