"""A model that is ready to serve, with the facts that were found while it was loaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from engine.cache.pages import KVBudget
from engine.grammar.compiler import GrammarCompiler
from engine.messages import Languages, ModelFacts, Params
from engine.model.encoder_decoder import Seq2SeqModel
from engine.model.fused_decoder import FusedDecoder
from engine.text.detokenizer import longest_token_bytes
from engine.vision.tower import VisionConfig


@dataclass(frozen=True, slots=True)
class TranslationConfig:
    """The facts about a model that translates. `target_tokens`: the most of a translation, its start tokens included.

    `source_vocabulary`: ids of sources are below it. `forced_end`: the last token of a translation of the greatest length
    is replaced by an end token.
    """

    languages: Languages
    target_tokens: int
    source_vocabulary: int
    forced_end: bool = False


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A language model on its device, and its tokenizer: a causal one with a chat template, or one that translates.

    `defaults` has a value for every field of `Params` that a generation config can define. `eos_ids` end a reply.
    `vocabulary` counts the ids that the model can embed. `grammars`: None if replies can't be held to any. `working_bytes`:
    about the most memory that is taken beside weights, keys and values.
    """

    name: str
    module: PreTrainedModel | FusedDecoder | Seq2SeqModel
    tokenizer: PreTrainedTokenizerBase
    defaults: Params
    eos_ids: frozenset[int]
    max_batch: int
    vocabulary: int
    kv: KVBudget
    grammars: GrammarCompiler | None = None
    translation_config: TranslationConfig | None = None
    vision_config: VisionConfig | None = None
    working_bytes: int = 0

    @property
    def context_tokens(self) -> int:
        """The most tokens of one request, prompt included, that the window and the memory allow."""
        return self.kv.context_tokens

    @property
    def device(self) -> torch.device:
        """The device that the model runs on."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in."""
        return self.module.dtype

    def facts(self) -> ModelFacts:
        """Return the facts that the layers above may know."""
        return ModelFacts(
            model=self.name,
            context_tokens=self.context_tokens,
            defaults=self.defaults,
            device=str(self.device),
            dtype=str(self.dtype).removeprefix("torch."),
            max_batch=self.max_batch,
            parameters=self.module.num_parameters()
            + (0 if self.vision_config is None else self.vision_config.tower.num_parameters()),
            token_bytes=longest_token_bytes(self.tokenizer),
            features=("format",) if self.grammars is not None else (),
            languages=self.translation_config.languages if self.translation_config is not None else None,
        )
