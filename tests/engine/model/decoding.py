"""Small fused models whose steps run in one call, and what their modules say."""

from __future__ import annotations

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

from engine.cache.paged_cache import LayerPages
from engine.model.fused_decoder import FusedDecoder, fused_decoder
from tests.engine.families import SIZES

HEADS, SIZE = SIZES["num_key_value_heads"], SIZES["head_dim"]
MADE = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
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
    """Pages of what is no number, for each layer."""
    like = torch.empty(0, HEADS, SIZE, dtype=fused.dtype)
    made = [LayerPages.make(like, like, pages, size) for _ in fused.layers]
    for layer in made:
        for store in layer:
            store.fill_(torch.nan)
    return made


@torch.inference_mode()
def by_itself(family: str, text: list[int]) -> Tensor:
    torch.manual_seed(2)
    return MADE[family]().eval()(torch.tensor([text])).logits[0, -1]
