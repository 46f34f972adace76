"""What models say about generating."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Gemma3TextConfig, GenerationConfig, LlamaConfig, MambaConfig

from engine.loading.loader import defaults_of, eos_ids_of
from engine.loading.probe import window_of
from engine.messages import REPLY_TOKENS, Params


def test_an_empty_generation_config_gives_transformers_own_values() -> None:
    expected = Params(
        REPLY_TOKENS, do_sample=False, temperature=1.0, top_p=1.0, top_k=50, repetition_penalty=1.0
    )
    assert defaults_of(GenerationConfig()) == expected


def test_given_values_win_zeros_included() -> None:
    got = defaults_of(
        GenerationConfig(do_sample=True, temperature=0.2, top_k=0, max_new_tokens=7, max_time=3.0)
    )
    assert (got.do_sample, got.temperature, got.top_k, got.max_new_tokens, got.max_time_s) == (
        True,
        0.2,
        0,
        7,
        3.0,
    )


@pytest.mark.parametrize(
    ("named", "tokenizer", "ids"),
    [
        ([1, 2], 3, {1, 2, 3}),
        (0, 3, {0, 3}),
        (0, 0, {0}),
        (7, None, {7}),
        (None, 3, {3}),
        (None, None, set()),
    ],
)
def test_the_generation_config_and_the_tokenizer_both_name_end_tokens(
    named: Any, tokenizer: int | None, ids: set[int]
) -> None:
    assert eos_ids_of(GenerationConfig(eos_token_id=named), tokenizer) == ids


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, "factor": 4.0,
    "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
}  # fmt: skip


def test_the_window_is_what_the_positions_allow() -> None:
    assert window_of(LlamaConfig(max_position_embeddings=77)) == 77
    assert window_of(Gemma3TextConfig(max_position_embeddings=99)) == 99
    assert window_of(MambaConfig()) is None


def test_frequencies_that_would_switch_for_the_whole_batch_bound_the_window() -> None:
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, max_position_embeddings=256, rope_parameters=LONGROPE
    )
    assert window_of(config) == 64
