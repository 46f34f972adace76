"""Failures of a request, made on purpose: NaN, too little memory, text that can't be made."""

from __future__ import annotations

import torch

from engine.execution.executor import LoadedModel
from engine.text.reply_text import Piece
from tests.engine.tiny_models import Numbers, served

POISON = 200
"""The token that causes the failure."""


def poisoned(*, max_batch: int = 2, kv_tokens: int | None = None) -> LoadedModel:
    """Return a model in which one token's embedding is NaN."""
    memory = {} if kv_tokens is None else {"kv_tokens": kv_tokens}
    model = served("llama", max_batch=max_batch, **memory)
    with torch.no_grad():
        model.module.get_input_embeddings().weight[POISON] = torch.nan
        model.module.lm_head.weight[POISON] = 0
    return model


def hungry(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """Ask the allocator for more than any machine has, if that token takes part."""
    if (arguments[0] == POISON).any():
        torch.empty(2**58)


class Unended(Numbers):
    """A reply that fails when its rest is flushed."""

    def flush(self) -> tuple[Piece, ...]:
        raise UnicodeError("no end")
