"""Sampling, and where a reply ends: the ranges of a request's numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from connections.openai.problems import Problem, invalid
from connections.openai.requests.models import BaseRequest
from connections.protocol import frames, params
from connections.protocol.errors import BadParams, field_message
from connections.protocol.server_info import Limits
from engine.messages import Params
from sessions.running.ephemeral import MAX_REPLIES

MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024
MAX_TOKEN_ID = 2**31 - 1
OFF = -1
"""A `top_k` or `seed` of none, as in vLLM and llama.cpp."""

_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("min_p", lambda n: 0 <= n <= 1, "from 0 to 1"),
    ("presence_penalty", lambda n: -2 <= n <= 2, "from -2 to 2"),  # noqa: PLR2004 - OpenAI's range
    ("frequency_penalty", lambda n: -2 <= n <= 2, "from -2 to 2"),  # noqa: PLR2004 - OpenAI's range
)


def params_of(request: BaseRequest, limits: Limits, *, length: str, top_logprobs: int | None) -> Params:
    """Return the sampling parameters. `length`: the field that limits the length. Raises Problem."""
    for field, fits, wanted in _RANGES:
        value = getattr(request, field)
        if value is not None and not fits(value):
            raise invalid(field, field_message(field, f"must be {wanted}."))
    most = limits.max_new_tokens
    if not 0 <= (request.min_tokens or 0) <= most:
        raise invalid("min_tokens", field_message("min_tokens", f"must be from 0 to {most}."))
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
        raise _out_of_range(error, length) from None
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


def replies_of(request: BaseRequest, prompts: int = 1) -> int:
    """Return the number of replies to each prompt. Raises Problem."""
    replies = 1 if request.n is None else request.n
    most = MAX_REPLIES // prompts
    if not 1 <= replies <= most:
        wanted = "1" if most == 1 else f"from 1 to {most}"
        raise invalid(
            "n", field_message("n", f"must be {wanted}{'' if prompts == 1 else ' with as many prompts'}.")
        )
    return replies


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_BIASES:
        raise invalid("logit_bias", field_message("logit_bias", f"may have at most {MAX_BIASES} tokens."))
    return tuple((_token(name), _bias(value)) for name, value in given.items())


def _token(name: str) -> int:
    if not (
        name.isascii()
        and name.isdecimal()
        and len(name) <= len(str(MAX_TOKEN_ID))
        and int(name) <= MAX_TOKEN_ID
    ):
        raise invalid("logit_bias", field_message("logit_bias", "must have ids of tokens as its names."))
    return int(name)


def _bias(value: float) -> float:
    if not -100 <= value <= 100:  # noqa: PLR2004 - OpenAI's range
        raise invalid("logit_bias", field_message("logit_bias", "must have values from -100 to 100."))
    return value


def _out_of_range(error: BadParams, length: str) -> Problem:
    field = (error.field or "").removeprefix("params.")
    field = length if field == "max_new_tokens" else field
    return invalid(field, field_message(field, error.why))
