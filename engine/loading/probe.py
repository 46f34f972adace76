"""Compares the logits of a freshly loaded model through the KV cache with those of the plain module.

Serving requires that a model's attention and positions go through this cache. No table of model types could
promise that for every model of the hub, but a comparison can. It is the warm-up as well.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.cache.layout import Span
from engine.errors import OTHER_ENGINE, ModelNotUsable
from engine.execution.runner import Runner
from engine.model import attention_interface as attention
from engine.model.attention import AttentionNotSupported
from engine.model.devices import is_out_of_memory
from engine.model.fused_decoder import FusedDecoder, fused_decoder

LENGTH = 32
"""Tokens of the trial: two chunks of a prompt and three decode steps, beside another reply."""

PAGE = 8

LARGEST_STEP = 4096
"""The most tokens of prompts that a step computes (`engine.scheduling.prefill_budget`)."""

TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
"""How far logits may be off, relative to their norm. A wrong position or a missing key puts them off by about 1."""

ODD_ROW = 0.5
"""How far one row of four may be off in low precision. Rounding alone can make a router choose another expert."""

log = logging.getLogger(__name__)


class Probed(NamedTuple):
    """The module to run, and the KV bytes of one token."""

    module: PreTrainedModel | FusedDecoder
    bytes_per_token: int


def probe(module: PreTrainedModel, vocabulary: int) -> Probed:
    """Compare, and return the module with attention over pages, or its fused form if it has one that agrees.

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
            _described(_off(got, expected)),
        )
        return Probed(module, bytes_per_token)
    return Probed(fused, bytes_per_token)


def through_pages(module: PreTrainedModel | FusedDecoder, vocabulary: int) -> Tensor:
    """Return the logits of the trial, (rows, vocabulary). A changed form of the module must give the same."""
    return _through_pages(module, _trial(vocabulary))[0]


def by_itself(module: PreTrainedModel, vocabulary: int) -> Tensor:
    """Return the logits of the trial, (rows, vocabulary), as the plain module computes them."""
    return _by_itself(module, _trial(vocabulary))


def largest_step(module: PreTrainedModel | FusedDecoder, vocabulary: int, window: int | None) -> Tensor:
    """Compute the largest prompt chunk that a step may have, in a cache of its own. Returns (1, vocabulary)."""
    tokens = min(LARGEST_STEP, window or LARGEST_STEP)
    runner = Runner(module, pages=1, page_size=tokens)
    ids = [place % vocabulary for place in range(tokens)]
    return runner.run([Span(0, 0, ids, samples=True, pages=(0,))])


def agrees(got: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Whether each row of logits, (rows, vocabulary), is as expected, up to a dtype's rounding. NaN never agrees."""
    off, tolerance = _off(got, expected), TOLERANCE.get(dtype, 0.2)
    exact = len(off) if dtype is torch.float32 else len(off) * 3 // 4
    return all(row <= (tolerance if place < exact else ODD_ROW) for place, row in enumerate(off))


def _off(got: Tensor, expected: Tensor) -> list[float]:
    """Return how far each row is off, relative to its norm, in ascending order with NaN last."""
    off: list[float] = ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).sort().values.tolist()
    return off


def _described(off: list[float]) -> str:
    return ", ".join(f"{row:.2g}" for row in off)


def _trial(vocabulary: int) -> list[int]:
    return [(7919 * place + 13) % vocabulary for place in range(LENGTH)]


@torch.inference_mode()
def _by_itself(module: PreTrainedModel, ids: list[int]) -> Tensor:
    """Return the logits behind the last four tokens, (4, vocabulary), as the plain module computes them."""
    logits: Tensor = module(input_ids=torch.tensor([ids], device=module.device), use_cache=False).logits
    return logits[0, -4:].float()


def _through_pages(module: PreTrainedModel | FusedDecoder, ids: list[int]) -> tuple[Tensor, int]:
    """Return the same logits, computed in chunks and steps beside another reply, and the KV bytes of a token."""
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
    """Return in words why a module can't run over pages. What Python says of that alone tells an operator nothing."""
    if isinstance(error, AttentionNotSupported):
        return str(error)
    if getattr(module.config.get_text_config(), "num_kv_shared_layers", 0):
        return "some of its layers attend to keys and values of other layers, which is not built"
    first = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    return f"its layers use the KV cache in a way that is not built ({first})"
