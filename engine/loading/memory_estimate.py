"""What a model gets on a device, by its configuration alone: memory for its weights, keys and values, and its context."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from engine.cache.budget import CPU_KV_SHARE, CUDA_KV_SHARE, KV_SHARE, kv_budget, page_size
from engine.loading.generation_defaults import window_of
from engine.loading.small_model import NotTestable, try_small_model
from engine.model.devices import available_bytes


class MemoryEstimate(msgspec.Struct, frozen=True):
    """`weights`: bytes; `context`: tokens, about; `tried`: whether a small model of the same kind was served."""

    kind: str
    dtype: str
    weights: int
    context: int
    tried: bool

    @property
    def words(self) -> str:
        """Say it in a sentence."""
        known = (
            "" if self.tried else "; whether its attention can be served shows when its weights are loaded"
        )
        return (
            f"{self.kind} runs in this engine, with {self.weights / 10**9:.1f} GB of weights in {self.dtype} and a context "
            f"of about {self.context:,} tokens{known}."
        )


def memory_estimate(
    skeleton: PreTrainedModel,
    device: torch.device,
    *,
    kv_bytes: int | None = None,
    memory_share: float = 1.0,
    tries: bool = True,
) -> MemoryEstimate:
    """Return what a model without weights would get. `tries`: also try a small one. Raises ModelNotUsable."""
    config = skeleton.config.get_text_config()
    tried = False
    if tries:
        try:
            try_small_model(config)
            tried = True
        except NotTestable:
            pass
    weights = sum(weight.numel() * weight.element_size() for weight in skeleton.parameters())
    free = available_bytes(device)
    share = {"cpu": CPU_KV_SHARE, "cuda": CUDA_KV_SHARE}.get(device.type, KV_SHARE) * memory_share
    room = kv_bytes or (None if free is None else int(max(0, free - weights) * share))
    budget = kv_budget(
        room,
        bytes_per_token=kv_bytes_per_token(config, skeleton.dtype),
        window=window_of(config),
        max_batch=1,
        page_size=page_size(device.type),
    )
    dtype = str(skeleton.dtype).removeprefix("torch.")
    return MemoryEstimate(type(skeleton).__name__, dtype, weights, budget.context_tokens, tried)


def kv_bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values in all layers, by the sizes of a configuration."""
    sizes: Any = config
    heads = sizes.num_attention_heads
    kv_heads = getattr(sizes, "num_key_value_heads", None) or heads
    numbers = 2 * kv_heads * (getattr(sizes, "head_dim", None) or sizes.hidden_size // heads)
    if getattr(sizes, "kv_lora_rank", None):
        numbers = sizes.kv_lora_rank + sizes.qk_rope_head_dim
    return int(sizes.num_hidden_layers * numbers * dtype.itemsize)
