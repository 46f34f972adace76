"""What a model gets on a device, by its configuration alone: a trial of a small copy, its memory, and its context."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from engine.cache.pages import CPU_KV_SHARE, CUDA_KV_SHARE, kv_budget, page_size
from engine.loading.probe import by_itself, probe, window_of
from engine.model.devices import available_bytes

VOCABULARY = 256
HEADS, HEAD = 4, 16

WIDTHS: dict[str, int] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "hidden_size": HEADS * HEAD,
    "word_embed_proj_dim": HEADS * HEAD,
    "embedding_size": HEADS * HEAD,
    "intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "ffn_dim": 64,
    "ffn_hidden_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "n_embd": HEADS * HEAD,
    "n_inner": 64,
    "d_model": HEADS * HEAD,
    "d_ff": 64,
    "decoder_ffn_dim": 64,
    "head_dim": HEAD,
    "global_head_dim": HEAD,
    "attention_head_dim": HEAD,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 8,
    "sliding_window": 12,
    "attention_window_size": 12,
    "attention_chunk_size": 16,
    "floor_scale": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
}
"""What sizes become, where a configuration has them and they are larger: all that decides no more than cost."""

IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


class NotTestable(Exception):
    """No small model can be made of a configuration, so nothing is known before the weights are there."""


def try_small_model(config: PreTrainedConfig) -> None:
    """Raise ModelNotUsable if a small model of this configuration can't be served, NotTestable if none can be made."""
    try:
        made: Any = AutoModelForCausalLM
        torch.manual_seed(0)
        module = made.from_config(reduced(config), dtype=torch.float32, attn_implementation="eager").eval()
        by_itself(module, VOCABULARY)
    except Exception as error:
        raise NotTestable(f"{type(error).__name__}: {error}") from error
    probe(module, VOCABULARY)


def reduced(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a configuration of the same kind with small widths."""
    values = config.to_dict()
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    one_size = values.get("head_dim") == values.get("qk_rope_head_dim")
    for name, size in WIDTHS.items():
        if isinstance(had := values.get(name), int) and not isinstance(had, bool) and had > size:
            values[name] = size
    attributes = config.attribute_map
    values[attributes.get("num_attention_heads", "num_attention_heads")] = HEADS
    if isinstance(kv_heads, int):
        values["num_key_value_heads"] = HEADS if kv_heads == heads else 1 if kv_heads == 1 else 2
    if one_size and "qk_rope_head_dim" in values:
        values["head_dim"] = values["qk_rope_head_dim"]
    elif values.get("head_dim", 0) is None:
        values["head_dim"] = HEAD
    for name, number in IDS.items():
        if isinstance(had := values.get(name), list):
            values[name] = [number]
        elif had is not None:
            values[name] = number
    return type(config).from_dict(values)


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
    share = (CUDA_KV_SHARE if device.type == "cuda" else CPU_KV_SHARE) * memory_share
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
