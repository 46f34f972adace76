"""Compiles a model's forward pass with torch.compile, and warms up every kind of step before the first request.

Code that reads or writes pages (attention, masks, the KV cache) stays outside the compiled graphs. Its shapes change
with every step, and it consists of matrix products anyway. The layers between are fused once, for any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from engine.attention import interface as attention
from engine.cache.layout import Span
from engine.cache.paged_cache import PagedCache
from engine.errors import ModelNotUsable
from engine.execution.runner import Runner
from engine.loading.probe import agrees
from engine.model.devices import is_out_of_memory

Backend = Callable[[Any, Any], Any]
"""Compiles one graph for its example inputs, as `torch.compile(backend=…)` takes it."""


def compile_forward(module: PreTrainedModel, vocabulary: int, *, backend: str | Backend = "inductor") -> None:
    """Compile a module that the probe has accepted, and run each kind of step once. Takes tens of seconds.

    Raises ModelNotUsable if it can't be compiled or gives different logits afterwards, RuntimeError if memory
    runs out.
    """
    expected = _each_kind_of_step(module, vocabulary)
    try:
        _keep_pages_outside()
        module.compile(dynamic=True, backend=backend)
        got = _each_kind_of_step(module, vocabulary)
    except Exception as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise ModelNotUsable(
            f"--compile: {type(module).__name__} can't be compiled: {_reason(error)}."
        ) from error
    if not agrees(got, expected, module.dtype):
        raise ModelNotUsable(
            f"--compile: {type(module).__name__} gives different logits once it is compiled."
        )


def _keep_pages_outside() -> None:
    # transformers wraps many functions in the same wrapper. Each counts as one more compilation of that wrapper,
    # and beyond torch's limit (8) the rest would silently run uncompiled.
    torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - where torch keeps this switch
    # Otherwise each layer's index would be a constant, and each layer would get a graph of its own.
    torch._dynamo.config.allow_unspec_int_on_nn_module = True  # noqa: SLF001 - where torch keeps this switch
    outside: Any = torch.compiler.disable
    AttentionInterface.register(attention.NAME, outside(attention.paged_attention))
    AttentionMaskInterface.register(attention.NAME, outside(attention.mask_rule))
    # It is wrapped here because a decorator where it is defined would import the compiler at every start.
    PagedCache.update = outside(PagedCache.update)  # type: ignore[method-assign]


def _each_kind_of_step(module: PreTrainedModel, vocabulary: int) -> Tensor:
    """Return the logits, (rows, vocabulary), of steps of one row and of more, with all, some and no logits wanted.

    Each of these kinds gets a graph. A graph that is compiled later, during a request, would hold up all replies.
    """
    runner, page = Runner(module, pages=3, page_size=32), ((0,), (1,), (2,))
    ids = [(7919 * place + 13) % vocabulary for place in range(8)]
    one = ids[:1]
    steps: Sequence[Sequence[Span]] = (
        (Span(0, 0, ids, samples=False, pages=page[0]),),
        (Span(0, 8, ids, samples=True, pages=page[0]),),
        (Span(1, 0, one, samples=False, pages=page[1]),),
        (Span(0, 16, one, samples=True, pages=page[0]),),
        (Span(0, 17, one, samples=True, pages=page[0]), Span(1, 1, one, samples=True, pages=page[1])),
        (Span(0, 18, one, samples=True, pages=page[0]), Span(2, 0, ids, samples=False, pages=page[2])),
        (Span(0, 19, one, samples=True, pages=page[0]), Span(2, 8, ids, samples=True, pages=page[2])),
    )
    return torch.cat([runner.run(spans) for spans in steps]).float()


def _reason(error: Exception) -> str:
    """Return the first line that says what happened. Lines that end in a colon only say where."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line.rstrip(".") for line in lines if line and line[-1] != ":"), type(error).__name__)
