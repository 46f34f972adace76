"""A model that is ready to serve, with all that was found out about it while it was loaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from engine.cache.budget import KVBudget
from engine.grammar.compiling import Compiler
from engine.messages import ModelFacts, Params
from engine.model.fused_decoder import FusedDecoder
from engine.text.token_sizes import longest_token_bytes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model on its device, and its tokenizer with a chat template.

    `defaults` has every field of `Params` filled that a generation config can define. `eos_ids` end a reply.
    `vocabulary` counts the ids that the model can embed. `grammars`: None where replies can't be held to any.
    """

    name: str
    module: PreTrainedModel | FusedDecoder
    tokenizer: PreTrainedTokenizerBase
    defaults: Params
    eos_ids: frozenset[int]
    max_batch: int
    vocabulary: int
    kv: KVBudget
    grammars: Compiler | None = None

    @property
    def context_tokens(self) -> int:
        """What the window and the memory allow one reply, prompt included."""
        return self.kv.context_tokens

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.module.dtype

    def facts(self) -> ModelFacts:
        """Say what the floors above may know."""
        return ModelFacts(
            model=self.name,
            context_tokens=self.context_tokens,
            defaults=self.defaults,
            device=str(self.device),
            dtype=str(self.dtype).removeprefix("torch."),
            max_batch=self.max_batch,
            parameters=self.module.num_parameters(),
            token_bytes=longest_token_bytes(self.tokenizer),
            features=("format",) if self.grammars is not None else (),
        )
