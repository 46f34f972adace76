"""What an operator says of an upstream: where it is, what it serves, what it understands, how patient we are with it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the upstream understands beyond OpenAI's own fields. What it does not understand is not sent.

    `usage`: a last chunk with totals, asked for by `stream_options`; `continuous_usage`: totals in each chunk (vLLM).
    `priority`: which numbers leave its queue first (vLLM: the low ones; SGLang: the high ones).
    `cache_salt`: prompts share keys and values within one salt only (vLLM, SGLang); a digest of ours is sent.
    `affinity_header`: the header that keeps a conversation with one replica behind a balancer; a digest is sent.
    `logprobs`: log-probabilities of tokens and of up to 20 alternatives, in OpenAI's shape.
    `tokenize`: where prompts are counted exactly, relative to the URL (vLLM, SGLang: "../tokenize").
    """

    usage: bool = True
    continuous_usage: bool = False
    top_k: bool = False
    repetition_penalty: bool = False
    logprobs: bool = False
    max_completion_tokens: bool = False
    priority: Literal["off", "low_first", "high_first"] = "off"
    cache_salt: bool = False
    affinity_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$")] | None = None
    tokenize: str | None = None


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. `patience_s`: how long a request waits for an upstream that is away; `health_s`: between looks at it."""

    connect_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    between_tokens_s: Seconds = 30.0
    patience_s: Seconds = 30.0
    health_s: Seconds = 10.0


class UpstreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One upstream. `url` has its base path, mostly ending with `/v1`; `model` is its own word for the model.

    `key_variable`: the variable of the environment that holds its key. `max_requests`: replies at once, as many as it
    runs well; further requests wait here. `retries`: of a request that failed before its first text, where no other
    upstream takes it. `max_new_tokens`: of replies whose sender names no limit. `bytes_per_token`: the estimate of a prompt's
    length where nothing counts it. `health`: what is asked for to see whether it serves, relative to the URL.
    """

    name: Annotated[str, Meta(min_length=1)]
    url: Annotated[str, Meta(pattern=r"^https?://[^/?#@]+(/[^?#]*)?$")]
    model: Annotated[str, Meta(min_length=1)]
    context_tokens: Count
    key_variable: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*$")] | None = None
    ca_file: str | None = None
    max_requests: Count = 256
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    max_new_tokens: Count = 1024
    bytes_per_token: Annotated[float, Meta(gt=0)] = 3.0
    health: str = "models"
    features: Features = Features()
    timeouts: Timeouts = Timeouts()


class UpstreamFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: one table `[[upstream]]` for each."""

    upstream: Annotated[tuple[UpstreamOptions, ...], Meta(min_length=1)]
