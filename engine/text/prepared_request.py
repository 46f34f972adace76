"""A request prepared for the step loop: token ids, resolved sampling, and the receiver of its text.

Knows no torch and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from engine.errors import EngineError
from engine.grammar.compiler import GrammarSource
from engine.messages import REPLY_TOKENS, Params
from engine.text.reply_text import Piece, ReplyLogprobs, ReplyStep
from engine.trace import NOBODYS, Trace
from engine.vision.image import PlacedImage

T = TypeVar("T")

MOST_BIASES = 300
LARGEST_BIAS = 100
LARGEST_PENALTY = 2


class DuplicateRequest(EngineError):
    """A request has the id of one that is still served. That one continues unchanged."""


class SamplingParams(msgspec.Struct, frozen=True):
    """The sampling parameters, all resolved.

    `top_k` 0, `top_p` 1 and `min_p` 0 mean: no such limit. `max_time_s` counts from the moment of submission.
    """

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int | None
    max_time_s: float | None
    top_logprobs: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether each token is the likeliest one by the model alone."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return not (self.do_sample or penalties or self.logit_bias or self.min_tokens)


class Reply(Protocol):
    """Turns one reply's tokens into pieces: text, reasoning, calls."""

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token."""

    def flush(self) -> Sequence[Piece]:
        """Return the held-back rest, once, at the reply's end."""

    @property
    def written(self) -> str:
        """The reply so far as the model wrote it, if its text is not all of that; else empty."""

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply; None if none did."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request for the core: everything is looked up, rendered and tokenized.

    `shared_tokens`: how many of the prompt's first tokens everyone may share. `logprobs`: where the reply's tokens are
    scored, which `reply` tells what it makes of them; None where nobody asked. `grammar`: what the reply has to be;
    None where it is free. `source`: what is translated; the prompt is then what the translation begins with. `shown`: its
    images, in order. `draft`: how its reply may begin; `ahead`: how many tokens it has behind what is right of that, at most.
    The rest as in `messages.Request`.
    """

    request_id: str
    prompt: Sequence[int]
    sampling: SamplingParams
    reply: Reply
    cache_salt: str = ""
    client: str = ""
    priority: int = 0
    shared_tokens: int = 0
    logprobs: ReplyLogprobs | None = None
    grammar: GrammarSource | None = None
    source: Sequence[int] = ()
    shown: Sequence[PlacedImage] = ()
    draft: Sequence[int] = ()
    ahead: int | None = None
    trace: Trace = NOBODYS

    @property
    def named(self) -> str:
        """Its name in the log."""
        facts = ", ".join(f"{name} {value}" for name, value in self.trace.facts.items())
        return f"{self.request_id} ({facts})" if facts else self.request_id


def request_error(request: PreparedRequest, *, context_tokens: int, vocabulary: int) -> str | None:
    """Return why a model with this window and vocabulary can't serve a request; None if it can."""
    prompt = request.prompt
    if not prompt:
        return "The prompt has no tokens."
    if len(prompt) >= context_tokens:
        return f"The prompt has {len(prompt)} tokens; with its reply it must fit into {context_tokens}."
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        return f"The prompt has a token id outside of the vocabulary of {vocabulary}."
    if request.sampling.max_new_tokens < 1:
        return "max_new_tokens must be at least 1."
    return None


def sampling_error(sampling: SamplingParams, *, vocabulary: int) -> str | None:
    """Return the invalid sampling value of a request, if any. Bounds are those of OpenAI's API."""
    biases = sampling.logit_bias
    most = f"from -{LARGEST_PENALTY} to {LARGEST_PENALTY}"
    rules = {
        f"logit_bias may have at most {MOST_BIASES} entries.": len(biases) <= MOST_BIASES,
        f"logit_bias takes token ids below {vocabulary}.": all(
            0 <= token < vocabulary for token, _ in biases
        ),
        f"logit_bias takes values from -{LARGEST_BIAS} to {LARGEST_BIAS}.": all(
            abs(value) <= LARGEST_BIAS for _, value in biases
        ),
        "min_p must be from 0 to 1.": 0 <= sampling.min_p <= 1,
        f"presence_penalty must be {most}.": abs(sampling.presence_penalty) <= LARGEST_PENALTY,
        f"frequency_penalty must be {most}.": abs(sampling.frequency_penalty) <= LARGEST_PENALTY,
        "min_tokens must be from 0 to max_new_tokens.": 0 <= sampling.min_tokens <= sampling.max_new_tokens,
    }
    return next((rule for rule, holds in rules.items() if not holds), None)


def resolve_sampling(params: Params, defaults: Params) -> SamplingParams:
    """Take each value from the request, else from the model's defaults, else from transformers'.

    A request with a temperature but no `do_sample` samples with it; temperature 0 is greedy.
    """
    temperature = _first(params.temperature, defaults.temperature, 1.0)
    do_sample = params.do_sample
    if do_sample is None and params.temperature is not None:
        do_sample = True
    return SamplingParams(
        max_new_tokens=_first(params.max_new_tokens, defaults.max_new_tokens, REPLY_TOKENS),
        do_sample=_first(do_sample, defaults.do_sample, False) and temperature > 0,
        temperature=temperature,
        top_p=_first(params.top_p, defaults.top_p, 1.0),
        top_k=_first(params.top_k, defaults.top_k, 50),
        repetition_penalty=_first(params.repetition_penalty, defaults.repetition_penalty, 1.0),
        seed=_first(params.seed, defaults.seed, None),
        max_time_s=_first(params.max_time_s, defaults.max_time_s, None),
        top_logprobs=params.top_logprobs,
        min_p=_first(params.min_p, defaults.min_p, 0.0),
        presence_penalty=_first(params.presence_penalty, defaults.presence_penalty, 0.0),
        frequency_penalty=_first(params.frequency_penalty, defaults.frequency_penalty, 0.0),
        logit_bias=params.logit_bias or defaults.logit_bias,
        min_tokens=_first(params.min_tokens, defaults.min_tokens, 0),
        ignore_eos=_first(params.ignore_eos, defaults.ignore_eos, False),
    )


def _first(requested: T | None, default: T | None, fallback: T) -> T:
    if requested is not None:
        return requested
    return fallback if default is None else default
