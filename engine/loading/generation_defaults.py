"""Reads what a model's own configuration says about generation: sampling, end tokens, context window."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig, PreTrainedConfig

from engine.messages import REPLY_TOKENS, Params

SAMPLING_FIELDS = ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "min_p")


def defaults_of(generation: GenerationConfig, reply_tokens: int = REPLY_TOKENS) -> Params:
    """Return the sampling values of a generation config, with transformers' defaults where it names none.

    `reply_tokens`: the longest reply if the config names none.
    """
    given = {name: getattr(generation, name, None) for name in SAMPLING_FIELDS}
    fallback: dict[str, Any] = {
        "do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0,
    }  # fmt: skip
    known = {name: value for name, value in given.items() if value is not None}
    return Params(
        max_new_tokens=generation.max_new_tokens or reply_tokens,
        max_time_s=generation.max_time,
        **(fallback | known),
    )


def eos_ids_of(generation: GenerationConfig, tokenizer_eos: int | None) -> frozenset[int]:
    """Return the tokens that end a reply: the generation config's and the tokenizer's."""
    named = generation.eos_token_id
    ids = named if isinstance(named, list) else [named]
    return frozenset(one for one in (*ids, tokenizer_eos) if one is not None)


def window_of(config: PreTrainedConfig) -> int | None:
    """Return a model's context window in tokens, or None if nothing limits it.

    A longrope embedding switches to other frequencies beyond its original length, so the window ends there.
    The switch would change all replies of a batch.
    """
    window: int | None = getattr(config, "max_position_embeddings", None)
    originals = [
        rope["original_max_position_embeddings"]
        for rope in _rope_parameters(config)
        if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings")
    ]
    limits = [limit for limit in (window, *originals) if limit]
    return min(limits, default=None)


def _rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Return a model's sets of rotary parameters: a single one, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [part for part in (rope, *rope.values()) if isinstance(part, dict)]
