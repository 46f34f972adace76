"""A request in the words of OpenAI's chat completions, and how long its prompt is, about. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import ceil
from typing import Any

from engine.errors import PromptRejected
from engine.messages import Message, Params, Request
from engine.upstream.options import Features, UpstreamOptions

TOKENS_A_MESSAGE = 4
"""What a chat template puts around a message, about."""


def estimated_tokens(messages: Sequence[Message], bytes_per_token: float) -> int:
    """Return a prompt's length where no tokenizer is at hand: its UTF-8 bytes by their number a token, and its frame.

    Three bytes a token is above what today's vocabularies need: four or more for English, three for most
    other scripts. Raises PromptRejected where there is no message, or one that is no text.
    """
    if not messages:
        raise PromptRejected("There is no message to answer.")
    try:
        size = sum(len(message.content.encode()) for message in messages)
    except UnicodeEncodeError as error:
        raise PromptRejected(f"The messages are no text: {error}") from error
    return ceil(size / bytes_per_token) + TOKENS_A_MESSAGE * len(messages)


def most_new_tokens(asked: int | None, options: UpstreamOptions, prompt_tokens: int) -> int:
    """Return how long the reply may get: what was asked for, as far as the window has room for it."""
    return max(1, min(asked or options.max_new_tokens, options.context_tokens - prompt_tokens))


def body_of(request: Request, options: UpstreamOptions, max_new_tokens: int) -> dict[str, Any]:
    """Return the body of `POST /chat/completions`."""
    features = options.features
    limit = "max_completion_tokens" if features.max_completion_tokens else "max_tokens"
    body: dict[str, Any] = {
        "model": options.model,
        "messages": messages_of(request.messages),
        "stream": True,
        limit: max_new_tokens,
        **_sampling(request.params, features),
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


def messages_of(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages as OpenAI writes them."""
    return [{"role": message.role, "content": message.content} for message in messages]


def session_of(request: Request) -> str | None:
    """Return a name of the conversation that tells nobody whose it is, nor what it is called; None where there is none."""
    return _digest(f"{request.cache_salt}\n{request.conversation}") if request.conversation else None


def lacking(features: Features) -> tuple[str, ...]:
    """Return the fields of `Params` that an upstream does not take: to drop them in silence would change the text."""
    served = {
        "top_k": features.top_k,
        "repetition_penalty": features.repetition_penalty,
        "top_logprobs": features.logprobs,
    }
    return tuple(name for name, takes in served.items() if not takes)


def _sampling(params: Params, features: Features) -> dict[str, Any]:
    told = features.logprobs and params.top_logprobs is not None
    greedy = params.do_sample is False or params.temperature == 0
    chosen = {
        "temperature": 0.0 if greedy else params.temperature,
        "top_p": None if greedy else params.top_p,
        "top_k": params.top_k if features.top_k and not greedy else None,
        "repetition_penalty": params.repetition_penalty if features.repetition_penalty else None,
        "seed": params.seed,
        "stop": list(params.stop) or None,
        "logprobs": told or None,
        "top_logprobs": params.top_logprobs if told else None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _digest(text: str) -> str:
    """Tell texts apart to one who shall not read them: salts and conversations hold our clients' ids."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
