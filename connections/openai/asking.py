"""Converts the body of a request to what turns are asked. Pure; a refusal names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from connections.http.json_shape import check_shape
from connections.openai.problems import Problem, invalid
from connections.openai.requests.fields import Asked, ChatRequest, CompletionRequest
from connections.openai.requests.formats import format_of
from connections.openai.requests.messages import messages_of
from connections.openai.requests.sampling import MAX_TOP_LOGPROBS, params_of, replies_of
from connections.openai.requests.thinking import reasoning_of, template_field, template_of
from connections.openai.requests.tools import tools_left_out, tools_spec
from connections.openai.unserved import refuse_unserved
from connections.wire.facts import Limits
from connections.wire.sentences import complaint, worded
from engine.messages import Message
from engine.reply_spec import ReplySpec
from sessions.running.ephemeral import Ask
from sessions.running.replies import MOST_REPLIES

T = TypeVar("T")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWER = "max_completion_tokens"

# Two passes, and neither makes objects of unsupported fields: millions of empty lists fit a body.
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_chat = msgspec.json.Decoder(ChatRequest).decode
_completion = msgspec.json.Decoder(CompletionRequest).decode


def chat_request(body: bytes) -> ChatRequest:
    """Return a request of the chat's door, with checked types. Raises Problem, TooManyValues."""
    return request_in(body, _chat)


def completion_request(body: bytes) -> CompletionRequest:
    """Return a request of the completions' door. Raises Problem, TooManyValues."""
    return request_in(body, _completion)


def request_in(body: bytes, decode: Callable[[bytes], T]) -> T:
    """Return the request in a body, as `decode` reads it. Raises Problem, TooManyValues."""
    body = body.removeprefix(_BYTE_ORDER_MARK)
    check_shape(body)
    try:
        refuse_unserved(_fields(body))
        return decode(body)
    except msgspec.ValidationError as error:
        raise _ill_typed(error) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise invalid(None, "The body is not a JSON object.", code="invalid_json") from None


def ask_of(request: ChatRequest, limits: Limits) -> Ask:
    """Return the messages and how to answer them. Raises Problem."""
    return Ask(
        messages_of(request.messages, limits),
        params_of(request, limits, length=_length(request), top_logprobs=_top_logprobs(request)),
        affinity=request.prompt_cache_key or "",
        user=request.cached_for,
        spec=_spec(request),
        replies=replies_of(request),
        ignored=(
            *tools_left_out(request.tools),
            *(("verbosity",) if request.verbosity not in (None, "medium") else ()),
        ),
        streams=bool(request.stream),
    )


def asks_of(request: CompletionRequest, limits: Limits) -> list[Ask]:
    """Return the prompts, unchanged, and how to continue each. Raises Problem."""
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    if not 0 < len(prompts) <= MOST_REPLIES or not all(prompts):
        why = f"must be a text, or 1 to {MOST_REPLIES} of them, none of them empty."
        raise invalid("prompt", worded("prompt", why))
    found = format_of(request)
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
        raise invalid("logprobs", worded("logprobs", f"must be from 0 to {MAX_TOP_LOGPROBS}."))
    params = params_of(request, limits, length="max_tokens", top_logprobs=request.logprobs)
    spec = ReplySpec(raw=True, format=found[1] if found else None)
    replies, affinity = replies_of(request, len(prompts)), request.prompt_cache_key or ""
    return [
        Ask(
            (Message("user", prompt),),
            params,
            affinity=affinity,
            user=request.cached_for,
            spec=spec,
            replies=replies,
        )
        for prompt in prompts
    ]


def fields_of(request: Asked) -> dict[str, str]:
    """Return the client's names of fields that the floors below name otherwise."""
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
    begins, goes_on = request.add_generation_prompt is not False, bool(request.continue_final_message)
    if begins and goes_on:
        why = "needs `add_generation_prompt` to be false."
        raise invalid("continue_final_message", worded("continue_final_message", why))
    if not begins and not goes_on:
        why = "can be false together with `continue_final_message` alone."
        raise invalid("add_generation_prompt", worded("add_generation_prompt", why))
    if goes_on and (request.messages[-1].role != "assistant" or request.messages[-1].tool_calls):
        why = "needs a message of the role assistant, without calls, as the last one."
        raise invalid("continue_final_message", worded("continue_final_message", why))
    return goes_on


def _length(request: ChatRequest) -> str:
    """Return the field that limits the length of a reply."""
    return "max_tokens" if request.max_completion_tokens is None else _NEWER


def _top_logprobs(request: ChatRequest) -> int | None:
    """Return how many of the likeliest tokens to send with each one; None: no log-probabilities."""
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"`top_logprobs` must be from 0 to {MAX_TOP_LOGPROBS}.")
    if top and not request.logprobs:
        raise invalid("top_logprobs", "`top_logprobs` is for requests whose `logprobs` is true.")
    return top if request.logprobs else None


def _ill_typed(error: msgspec.ValidationError) -> Problem:
    """Return what is wrong with a JSON object that is not a request."""
    wrong = complaint(error)
    code = "missing_required_parameter" if wrong.is_missing else "invalid_type"
    return invalid(wrong.field, wrong.told(whole="The body"), code=code)
