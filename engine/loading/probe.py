"""Decides whether a model can be served, by its configuration, then by its logits; estimates what it gets on a device.

Serving requires that a model's attention and positions go through the KV cache. No table of model types could promise that
for every model of the hub, but a comparison with the plain module can. The comparison is the warm-up as well.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from engine.errors import OTHER_ENGINE, ModelNotUsable
from engine.execution.executor import Runner
from engine.kv_cache import CPU_KV_SHARE, CUDA_KV_SHARE, kv_budget, page_size
from engine.machine import EngineOptions
from engine.model import fused_decoder as attention
from engine.model.attention import AttentionNotSupported
from engine.model.devices import available_bytes, is_out_of_memory
from engine.model.fused_decoder import FusedDecoder, fused_decoder
from engine.step_layout import LARGEST_PREFILL, Span

SERVED_LAYERS = frozenset({"full_attention", "sliding_attention"})

LENGTH = 32
"""Tokens of the trial: two chunks of a prompt and three decode steps, alongside another reply."""

PAGE = 8

TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
"""How far logits may be off, relative to their norm. A wrong position or a missing key puts them off by about 1."""

ODD_ROW = 0.5
"""How far one row of four may be off in low precision. Rounding alone can make a router choose another expert."""

log = logging.getLogger(__name__)


def check_architecture(
    model: str, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype
) -> None:
    """Refuse a model that can't be served or doesn't fit, before its weights are read. Raises ModelNotUsable."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelNotUsable(
            f"The model {model!r} is not a causal language model, so it can't write replies."
        )
    kind = _quantization_of(config)
    if kind is not None:
        raise ModelNotUsable(
            f"The checkpoint of {model!r} is quantized ({kind}), which is not supported yet. Take the model that it "
            f"was made from; --quantize int8 makes its weights smaller on a CPU. As it is, {OTHER_ENGINE}."
        )
    skeleton = skeleton_of(model, config, dtype)
    check_kind(model, config, type(skeleton))
    check_room(model, skeleton, device)


def check_kind(model: str, config: PreTrainedConfig, kind: Any) -> None:
    """Raise ModelNotUsable if a model's layers or class say that it can't run over pages."""
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - SERVED_LAYERS
    # Models set this flag for `generate` alone, and it has no public reader (transformers 5.0 to 5.23 and later).
    if kind._is_stateful or others:  # noqa: SLF001
        layers = ", ".join(sorted(others)) or "recurrent"
        raise ModelNotUsable(
            f"The model {model!r} has layers that a KV cache alone does not serve ({layers}); {OTHER_ENGINE}."
        )
    if not kind.is_backend_compatible():
        raise ModelNotUsable(
            f"The model type {kind.__name__} has an attention that can't be replaced; {OTHER_ENGINE}."
        )


def skeleton_of(
    model: str, config: PreTrainedConfig, dtype: torch.dtype, kind: Any = AutoModelForCausalLM
) -> Any:
    """Return the model on the meta device, without memory for its weights. Raises ModelNotUsable.

    The result is not typed, since callers read private flags of its class.
    """
    untyped: Any = kind
    try:
        with torch.device("meta"):
            return untyped.from_config(config, dtype=dtype)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelNotUsable(f"The config.json of {model!r} makes no model: {reason}.") from error


def window_of(config: PreTrainedConfig) -> int | None:
    """Return a model's context window in tokens, or None if nothing limits it.

    A longrope embedding switches to other frequencies beyond its original length, so the window ends there.
    The switch would change all replies of a batch.
    """
    window: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    originals = [  # of a single set of rotary parameters, or of one for each kind of layer
        part.get("original_max_position_embeddings")
        for part in (rope, *rope.values())
        if isinstance(part, dict) and part.get("rope_type") == "longrope"
    ]
    limits = [limit for limit in (window, *originals) if limit]
    return min(limits, default=None)


def check_room(model: str, skeleton: PreTrainedModel, device: torch.device) -> None:
    """Raise ModelNotUsable if a device has too little free memory for a model's weights."""
    needed = sum(weight.numel() * weight.element_size() for weight in skeleton.parameters())
    free = available_bytes(device)
    if free is not None and needed > free:
        raise ModelNotUsable(
            f"The model {model!r} needs {_gib(needed)} for its weights alone; {_gib(free)} are free on {device}. "
            "To spread one model over several GPUs, use --engine vllm --engine-arg tensor-parallel-size=2."
        )


def _quantization_of(config: PreTrainedConfig) -> str | None:
    """Return the name of the method that a checkpoint was quantized with; None if it was not."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    return str(getattr(method, "value", method) or "in some way")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


class Probed(NamedTuple):
    """The module to run, and the KV bytes of one token."""

    module: PreTrainedModel | FusedDecoder
    bytes_per_token: int


def probe(module: PreTrainedModel, vocabulary: int) -> Probed:
    """Compare logits; return the module with attention over pages, or its fused form if it has one that agrees.

    Raises ModelNotUsable if the model can't be served, RuntimeError if memory runs out.
    """
    kind = type(module).__name__
    ids = _trial(vocabulary)
    attention.register()
    try:
        expected = _by_itself(module, ids)
        module.set_attn_implementation(attention.NAME)
        got, bytes_per_token = _through_pages(module, ids)
    except Exception as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise ModelNotUsable(
            f"The model type {kind} can't be served: {_reason(error, module)}; {OTHER_ENGINE}."
        ) from error
    if not agrees(got, expected, module.dtype):
        raise ModelNotUsable(
            f"The model type {kind} can't be served: its attention or its state does not go through "
            f"the KV cache; {OTHER_ENGINE}."
        )
    fused = fused_decoder(module)
    if fused is None:
        return Probed(module, bytes_per_token)
    got = _through_pages(fused, ids)[0]
    if not agrees(got, expected, module.dtype):
        log.warning(
            "replies are slower: the fused form of %s gives different logits (off by %s) and is not used",
            kind,
            ", ".join(f"{row:.2g}" for row in _off(got, expected)),
        )
        return Probed(module, bytes_per_token)
    return Probed(fused, bytes_per_token)


def largest_step(module: PreTrainedModel | FusedDecoder, vocabulary: int, window: int | None) -> Tensor:
    """Compute the largest prompt chunk that a step may have, in a cache of its own. Returns (1, vocabulary)."""
    tokens = min(LARGEST_PREFILL, window or LARGEST_PREFILL)
    runner = Runner(module, pages=1, page_size=tokens)
    ids = [place % vocabulary for place in range(tokens)]
    return runner.run([Span(0, 0, ids, samples=True, pages=(0,))])


def agrees(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether each row of logits, (rows, vocabulary), is as expected, up to a dtype's rounding. NaN never agrees."""
    off, tolerance = _off(got, expected), TOLERANCE.get(dtype, 0.2)
    exact = len(off) if dtype is torch.float32 else len(off) * 3 // 4
    return all(row <= (tolerance if place < exact else ODD_ROW) for place, row in enumerate(off))


def _off(got: Tensor, expected: Tensor) -> list[float]:
    """Return how far each row is off, relative to the expected norm, in ascending order with NaN last."""
    off: list[float] = ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).sort().values.tolist()
    return off


def _trial(vocabulary: int) -> list[int]:
    return [(7919 * place + 13) % vocabulary for place in range(LENGTH)]


@torch.inference_mode()
def _by_itself(module: PreTrainedModel, ids: list[int]) -> Tensor:
    """Return the logits after the last four tokens, (4, vocabulary), as the plain module computes them."""
    logits: Tensor = module(input_ids=torch.tensor([ids], device=module.device), use_cache=False).logits
    return logits[0, -4:].float()


def _through_pages(module: PreTrainedModel | FusedDecoder, ids: list[int]) -> tuple[Tensor, int]:
    """Return the same logits, computed in chunks and steps alongside another reply, and the KV bytes of a token."""
    # Pages are so small that a request has several, and they are not neighbours.
    runner, pages = Runner(module, pages=2 * LENGTH // PAGE, page_size=PAGE), LENGTH // PAGE
    table, others = range(0, 2 * pages, 2), range(2 * pages - 1, 0, -2)
    first, prompt = LENGTH // 2, LENGTH - 3
    runner.run([Span(1, 0, ids[:first], samples=False, pages=table)])
    beside = Span(0, 0, ids[: first - 1 : -1], samples=False, pages=others)
    rows = [runner.run([beside, Span(1, first, ids[first:prompt], samples=True, pages=table)])]
    for place in range(prompt, LENGTH):
        beside = Span(0, first + place - prompt - 1, ids[:1], samples=True, pages=others)
        own = Span(1, place, ids[place : place + 1], samples=True, pages=table)
        rows.append(runner.run([beside, own])[1:])
    return torch.cat(rows).float(), runner.cache.bytes_per_token


def _reason(error: Exception, module: PreTrainedModel) -> str:
    """Return in words why a module can't run over pages: Python's message alone tells an operator nothing."""
    if isinstance(error, AttentionNotSupported):
        return str(error)
    if getattr(module.config.get_text_config(), "num_kv_shared_layers", 0):
        return "some of its layers attend to keys and values of other layers, which is not built"
    first = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    return f"its layers use the KV cache in a way that is not built ({first})"


def memory_estimate(skeleton: PreTrainedModel, device: torch.device, options: EngineOptions) -> str:
    """Return a sentence on the memory and context of a skeleton's model. Raises ModelNotUsable."""
    config = skeleton.config.get_text_config()
    weights = sum(weight.numel() * weight.element_size() for weight in skeleton.parameters())
    free = available_bytes(device)
    share = (CUDA_KV_SHARE if device.type == "cuda" else CPU_KV_SHARE) * options.memory_share
    budget = kv_budget(
        options.kv_bytes or (None if free is None else int(max(0, free - weights) * share)),
        bytes_per_token=kv_bytes_per_token(config, skeleton.dtype),
        window=window_of(config),
        max_batch=1,
        page_size=page_size(device.type),
    )
    dtype = str(skeleton.dtype).removeprefix("torch.")
    return (
        f"{type(skeleton).__name__} runs in this engine, with {weights / 10**9:.1f} GB of weights in {dtype} and a "
        f"context of about {budget.context_tokens:,} tokens, if its attention goes through the KV cache."
    )


def kv_bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values in all layers, by the sizes of a configuration."""
    sizes: Any = config
    heads = sizes.num_attention_heads
    kv_heads = getattr(sizes, "num_key_value_heads", None) or heads
    numbers = 2 * kv_heads * (getattr(sizes, "head_dim", None) or sizes.hidden_size // heads)
    if getattr(sizes, "kv_lora_rank", None):
        numbers = sizes.kv_lora_rank + sizes.qk_rope_head_dim
    return int(sizes.num_hidden_layers * numbers * dtype.itemsize)
