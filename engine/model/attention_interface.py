"""Attention over pages for transformers' modules, which call it by the name `midstream`.

The models themselves say what a query may see: causal, a sliding window, chunks. Other rules are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from engine.cache.layout import StepLayout
from engine.cache.paged_cache import LayerPages
from engine.model.attention import AttentionNotSupported, AttentionParams, Backend, Reference
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import Cpu
from engine.model.cuda.operators import Cuda

NAME = "midstream"

MaskFunction = Callable[[Tensor, int, Tensor, Tensor], Tensor]

CAUSAL: MaskFunction = cast("MaskFunction", causal_mask_function)
"""transformers' rule that a query sees no later key. The cast is needed since its annotations say integers."""


NOT_BUILT = {
    "s_aux": "has attention sinks (s_aux)",
    "position_bias": "adds a bias by position to its scores (position_bias)",
}
"""Arguments of an attention that change its scores, and what they do."""


class Paged(NamedTuple):
    """What a module passes on to its attention, as the keyword argument `paged` of its forward pass."""

    step: StepLayout
    backend: Backend


class MaskRule(NamedTuple):
    """What a query may see, as the model states it: see `AttentionParams`."""

    window: int | None = None
    chunk: int | None = None


def backend_for(device: torch.device, dtype: torch.dtype) -> Backend:
    """Return the attention that serves a device and a dtype best."""
    if device.type == "cuda" and find_spec("triton") is not None:
        return Cuda(processors=torch.cuda.get_device_properties(device).multi_processor_count)
    return Cpu() if cpu_kernels.serve(torch.empty(0, dtype=dtype, device=device)) else Reference()


def keeps_latents(module: nn.Module) -> bool:
    """Whether a module caches latents, and makes keys and values of them when it reads them (DeepSeek's attention)."""
    return getattr(getattr(module, "config", None), "kv_lora_rank", None) is not None


def gathered(step: StepLayout) -> StepLayout:
    """Return the layout of a step whose contexts were gathered, so that each is one long page."""
    tables = torch.arange(len(step.tables), dtype=torch.int32, device=step.tables.device)
    return replace(step, tables=tables.unsqueeze(1))


def register() -> None:
    """Register the name with transformers. Calling it again does no harm."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, mask_rule)


def mask_rule(*, mask_function: MaskFunction, use_vmap: bool = False, **_sizes: Any) -> MaskRule:
    """Return the rule of the mask that a model asks for. Raises AttentionNotSupported if `AttentionParams` can't state it."""
    if mask_function is CAUSAL:
        return MaskRule()
    known = None if use_vmap else _known_rules().get(_code(mask_function))
    if known is None:
        raise AttentionNotSupported("it masks attention with rules of its own")
    name, number = known
    overlay = _parts(mask_function)[0]
    return MaskRule(**{name: overlay.__closure__[overlay.__code__.co_freevars.index(number)].cell_contents})


def paged_attention(  # noqa: PLR0917 - transformers calls it with these, in this order
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskRule,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with a step's queries, (1, heads, rows, size), to a layer's pages, which the cache handed out.

    Returns (1, rows, heads, value size). Raises AttentionNotSupported if the model changes scores in other ways.
    """
    paged = _checked(module, attention_mask, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    terms = AttentionParams(scale, *attention_mask, softcap=kwargs.get("softcap"))
    layer = LayerPages(key, value)
    if keeps_latents(module):
        layer = LayerPages(*(made.contiguous().transpose(1, 2) for made in layer))
    mixed = paged.backend.attend(query[0].transpose(0, 1), layer, paged.step, terms)
    return mixed.unsqueeze(0), None


def _checked(module: nn.Module, rule: object, kwargs: dict[str, Any]) -> Paged:
    paged = kwargs.get("paged")
    if not isinstance(paged, Paged) or not isinstance(rule, MaskRule):
        raise AttentionNotSupported(
            f"{type(module).__name__} does not pass on the arguments of its attention"
        )
    for feature, words in NOT_BUILT.items():
        if kwargs.get(feature) is not None:
            raise AttentionNotSupported(f"{type(module).__name__} {words}, which is not built")
    return paged


@cache
def _known_rules() -> dict[tuple[Any, ...], tuple[str, str]]:
    """Return the field of `MaskRule` for each rule of transformers, and the name of the variable with its number."""
    sliding: Any = sliding_window_causal_mask_function(1)
    chunked: Any = chunked_causal_mask_function(1, torch.zeros(1))
    return {_code(sliding): ("window", "sliding_window"), _code(chunked): ("chunk", "chunk_size")}


def _parts(rule: Any) -> tuple[Any, ...]:
    """Return the functions that a rule of transformers joins with `and`; none if it is no such rule."""
    found = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
    return found[0] if len(found) == 1 and isinstance(found[0], tuple) else ()


def _code(rule: Any) -> tuple[Any, ...]:
    """Return a key for a kind of rule, whatever its numbers are."""
    return (rule.__code__, *(part.__code__ for part in _parts(rule)))
