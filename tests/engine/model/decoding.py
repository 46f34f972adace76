"""Small fused models whose steps run in one call, and the logits of their plain modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.kv_cache import LayerPages
from engine.model.fused_decoder import FusedDecoder, fused_decoder
from tests.engine.families import SIZES

SIZE = SIZES["head_dim"]
ODD_SIZES = SIZES | {
    "hidden_size": 150,
    "intermediate_size": 302,
    "num_attention_heads": 6,
    "head_dim": 32,
    "initializer_range": 0.1,
}
"""Wider than what the kernels multiply at a time, no multiple of any block, and with heads for vectors of pairs."""
MADE = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "odd llama": lambda: LlamaForCausalLM(LlamaConfig(**ODD_SIZES, attention_bias=True, mlp_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}


def decoder(family: str = "llama", dtype: torch.dtype = torch.float32) -> FusedDecoder:
    torch.manual_seed(2)
    module = MADE[family]().to(dtype).eval()
    fused = fused_decoder(module)
    assert fused is not None
    return fused


def made_pages(fused: FusedDecoder, pages: int, size: int) -> list[LayerPages]:
    """Return pages full of NaN, for each layer."""
    first: Any = fused.layers[0]
    like = torch.empty(0, first.kv_heads, first.size, dtype=fused.dtype)
    made = [LayerPages.make(like, like, pages, size) for _ in fused.layers]
    for layer in made:
        for store in layer:
            store.fill_(torch.nan)
    return made


@torch.inference_mode()
def by_itself(family: str, text: list[int]) -> Tensor:
    torch.manual_seed(2)
    return MADE[family]().eval()(torch.tensor([text])).logits[0, -1]
