"""A model in the shape of Llama 8B, with fewer layers, on a fake CUDA device."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.model.fused_decoder import FusedDecoder, fused_decoder
from tests.engine.fake_cuda import CUDA

LAYERS, PAGE, CONTEXT = 2, 256, 8192


def llama() -> FusedDecoder:
    """Return the model, whose weights have no numbers."""
    config = LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=LAYERS,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    with torch.device(CUDA):
        module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fused = fused_decoder(module)
    assert fused is not None
    return fused
