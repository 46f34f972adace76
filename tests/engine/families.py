"""Causal language models with random weights, one of each served family, which take milliseconds to make and to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf
from transformers import PreTrainedModel

VOCABULARY = 256
WINDOW = 128
SLIDING = 12
"""Shorter than the prompts of the tests, since tokens outside the window must not be seen."""

NO_SPECIALS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

SIZES: dict[str, Any] = NO_SPECIALS | {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": WINDOW,
    # Wide enough that the likeliest tokens are far apart, so that greedy replies have no ties.
    "initializer_range": 0.3,
}

GPT2_SIZES: dict[str, Any] = NO_SPECIALS | {
    "vocab_size": VOCABULARY,
    "n_positions": WINDOW,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "initializer_range": 0.3,
}

OPT_SIZES: dict[str, Any] = NO_SPECIALS | {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "init_std": 0.3,
}

SCALED_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 4,
    "llama_4_scaling_beta": 1.0,
}
"""Ministral 3 scales queries by the position."""

OWN_WORDS: dict[str, Any] = {"tie_word_embeddings": False, "query_pre_attn_scalar": 8}
"""Without these a Gemma of this size repeats its last word, whatever it attends to."""

EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}
"""DeepSeek's attention: keys and values of different sizes."""


def sized(*without: str, **more: Any) -> dict[str, Any]:
    """Return the sizes that families share, without those that one lacks, and with its own."""
    return {name: value for name, value in SIZES.items() if name not in without} | more


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=SLIDING, max_window_layers=1)
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES)),
    "qwen3 moe": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**SIZES, **EXPERTS)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SIZES, sliding_window=SLIDING)),
    "ministral3": lambda: hf.Ministral3ForCausalLM(hf.Ministral3Config(**SIZES, rope_parameters={**SCALED_ROPE})),
    "mixtral": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=SLIDING)
    ),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SIZES, tie_word_embeddings=False)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(
        hf.Gemma2Config(
            **SIZES, **OWN_WORDS, sliding_window=SLIDING, attn_logit_softcapping=5.0,
            final_logit_softcapping=10.0,
        )
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**SIZES, **OWN_WORDS, sliding_window=SLIDING, sliding_window_pattern=2)
    ),
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**sized("head_dim"), partial_rotary_factor=0.5)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**sized("head_dim"), sliding_window=SLIDING)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2_SIZES, tie_word_embeddings=False)),
    "gpt bigcode": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**GPT2_SIZES, multi_query=True)),
    "gpt neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sized("head_dim", "num_key_value_heads"))),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT_SIZES)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**sized("head_dim"))),
    "olmo3": lambda: hf.Olmo3ForCausalLM(
        hf.Olmo3Config(
            **sized("head_dim"), sliding_window=SLIDING,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "granite": lambda: hf.GraniteForCausalLM(
        hf.GraniteConfig(
            **sized("head_dim"), attention_multiplier=0.2, residual_multiplier=0.7, embedding_multiplier=3.0
        )
    ),
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**sized("head_dim"))),
    "cohere2": lambda: hf.Cohere2ForCausalLM(
        hf.Cohere2Config(
            **sized("head_dim"), sliding_window=SLIDING,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "smollm3": lambda: hf.SmolLM3ForCausalLM(hf.SmolLM3Config(**sized("head_dim"), no_rope_layers=[1, 0, 1])),
    "starcoder2": lambda: hf.Starcoder2ForCausalLM(
        hf.Starcoder2Config(**sized("head_dim"), sliding_window=SLIDING)
    ),
    "glm4": lambda: hf.Glm4ForCausalLM(hf.Glm4Config(**SIZES)),
    "exaone4": lambda: hf.Exaone4ForCausalLM(
        hf.Exaone4Config(**sized("head_dim"), sliding_window=SLIDING, sliding_window_pattern=2)
    ),
    "mistral4": lambda: hf.Mistral4ForCausalLM(
        hf.Mistral4Config(**sized("head_dim", "num_key_value_heads"), **LATENT, rope_parameters={**SCALED_ROPE})
    ),
    "deepseek v3": lambda: hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(**sized("head_dim", "num_key_value_heads"), **LATENT)
    ),
}  # fmt: skip
