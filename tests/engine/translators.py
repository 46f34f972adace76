"""Encoder-decoders with random weights, which take milliseconds to make and to run. Their tokenizers are made here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
)

from engine.execution.executor import LoadedModel, TranslationConfig
from engine.kv_cache import KVBudget
from engine.loading.loader import TRANSLATION_PAGE as PAGE
from engine.loading.loader import prepared_translator
from engine.messages import Languages, Params
from engine.text.reply_text import PreparedRequest, SamplingParams
from tests.engine.conftest import small_tokenizer
from tests.engine.tiny_models import GREEDY, Numbers

VOCABULARY = 200
POSITIONS = 64
PAD, END, START, LANGUAGE = 199, 0, 199, 7

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": POSITIONS,
    # Wide enough that the likeliest tokens are far apart, so that greedy replies have no ties.
    "init_std": 0.3,
    "decoder_start_token_id": START,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": None,
    "forced_eos_token_id": None,
}


def _marian() -> PreTrainedModel:
    module = MarianMTModel(
        MarianConfig(
            **SIZES, scale_embedding=True, activation_function="swish", decoder_vocab_size=VOCABULARY
        )
    )
    module.final_logits_bias.copy_(0.1 * torch.randn(1, VOCABULARY))
    module.generation_config.bad_words_ids = [[PAD], [11]]
    return module


def _two_vocabularies() -> PreTrainedModel:
    sizes = SIZES | {
        "vocab_size": 150,
        "pad_token_id": 1,
        "decoder_start_token_id": 1,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
    }
    return MarianMTModel(MarianConfig(**sizes, decoder_vocab_size=VOCABULARY, scale_embedding=False))


def _m2m() -> PreTrainedModel:
    # Positions start behind the padding token.
    sizes = SIZES | {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
    module = M2M100ForConditionalGeneration(M2M100Config(**sizes, scale_embedding=True))
    module.generation_config.forced_bos_token_id = LANGUAGE
    return module


def _mbart() -> PreTrainedModel:
    module = MBartForConditionalGeneration(MBartConfig(**SIZES, scale_embedding=True))
    module.generation_config.forced_eos_token_id = END
    return module


KINDS = {
    "marian": _marian,
    "two vocabularies": _two_vocabularies,
    "m2m100": _m2m,
    "mbart": _mbart,
}


def model_of(kind: str) -> PreTrainedModel:
    """Return a model with the same weights each time."""
    torch.manual_seed(3)
    return sharpened(KINDS[kind]().eval())


def sharpened(module: Any) -> PreTrainedModel:
    """Change weights so that translations depend on attention, and a word does not repeat itself."""
    is_marian = isinstance(module, MarianMTModel)
    # Marian's norms behind sums multiply what is rounded: with more, the trial of a model is at its tolerance.
    factors = dict.fromkeys(("q_proj.weight", "k_proj.weight"), 3.0 if is_marian else 4.0)
    if is_marian:
        factors |= {"out_proj.weight": 0.5, "fc2.weight": 0.5}
    with torch.no_grad():
        if module.lm_head.weight is module.model.decoder.embed_tokens.weight:
            module.lm_head.weight.mul_(0.4 if is_marian else 0.1)
        for name, weight in module.named_parameters():
            weight.mul_(next((factor for end, factor in factors.items() if name.endswith(end)), 1.0))
    return cast("PreTrainedModel", module)


@cache
def module_of(kind: str) -> PreTrainedModel:
    """Return a module as transformers runs it, which no test may change."""
    return model_of(kind)


def served(kind: str, *, max_batch: int = 4, kv_tokens: int = 4096) -> LoadedModel:
    module = model_of(kind)
    (made, bytes_per_token), generation = prepared_translator(module), module.generation_config
    end = generation.eos_token_id
    return LoadedModel(
        kind,
        made,
        small_tokenizer(),
        Params(),
        frozenset({end}),
        max_batch,
        VOCABULARY,
        KVBudget(kv_tokens // PAGE, PAGE, min(2 * POSITIONS, kv_tokens), bytes_per_token),
        translation_config=TranslationConfig(
            Languages((), (), POSITIONS),
            POSITIONS,
            made.source_vocabulary,
            generation.forced_eos_token_id is not None,
        ),
    )


def source(length: int, salt: int = 0) -> list[int]:
    """Return token ids below 150, none of them special."""
    return [(37 * place + 11 * salt + 5) % 130 + 12 for place in range(length)]


def beginning(kind: str, prefix: Sequence[int] = ()) -> list[int]:
    """Return the tokens that a translation begins with."""
    generation = module_of(kind).generation_config
    forced = generation.forced_bos_token_id
    return [generation.decoder_start_token_id, *([] if forced is None else [forced]), *prefix]


def translating(
    request_id: str,
    text: Sequence[int],
    begins: Sequence[int],
    sampling: SamplingParams = GREEDY,
    **how: Any,
) -> PreparedRequest:
    return PreparedRequest(request_id, begins, sampling, Numbers(), source=text, **how)


def generated(kind: str, text: Sequence[int], count: int, prefix: Sequence[int] = ()) -> list[int]:
    """Return what `generate` writes behind a prefix, without its end token."""
    return [*_generated(kind, tuple(text), count, tuple(prefix))]


@cache
def _generated(kind: str, text: tuple[int, ...], count: int, prefix: tuple[int, ...]) -> list[int]:
    module, given = module_of(kind), torch.tensor([list(text)])
    first = beginning(kind, prefix)
    made: Any = module.generate(
        given,
        attention_mask=torch.ones_like(given),
        decoder_input_ids=torch.tensor([first]),
        max_new_tokens=count,
        do_sample=False,
        num_beams=1,
    )
    tokens: list[int] = made[0, len(first) :].tolist()
    end = module.generation_config.eos_token_id
    return tokens[:-1] if tokens[-1] == end else tokens
