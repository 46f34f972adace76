"""The model: an encoder-decoder of M2M100's shape with 2.9 million weights."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    PreTrainedTokenizerBase,
)

from demo_translator.tokenizer import CHINESE, ENGLISH

CHECKPOINT = Path(__file__).parent / "checkpoint"
POSITIONS = 256
_WIDTH, _LAYERS, _HEADS, _INNER = 192, 3, 6, 512


def new_model(tokenizer: PreTrainedTokenizerBase) -> M2M100ForConditionalGeneration:
    """Return a model with fresh weights."""
    config = M2M100Config(
        vocab_size=len(tokenizer),
        d_model=_WIDTH,
        encoder_layers=_LAYERS,
        decoder_layers=_LAYERS,
        encoder_attention_heads=_HEADS,
        decoder_attention_heads=_HEADS,
        encoder_ffn_dim=_INNER,
        decoder_ffn_dim=_INNER,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
        scale_embedding=True,
        tie_word_embeddings=True,
    )
    config.unfinished_sources = True  # the engine reads it: a source without its end token goes on
    model = M2M100ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.shared.weight, std=_WIDTH**-0.5)
    return model


def languages(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the tokens of English and Chinese."""
    vocabulary = tokenizer.get_vocab()
    return vocabulary[ENGLISH], vocabulary[CHINESE]


def save(
    model: M2M100ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, folder: Path = CHECKPOINT
) -> None:
    """Write a transformers checkpoint in bfloat16, with its tokenizer and how it generates."""
    rounded: Any = copy.deepcopy(model)
    rounded.bfloat16()
    defaults: Any = GenerationConfig
    rounded.generation_config = defaults(
        do_sample=False,
        num_beams=1,
        max_new_tokens=POSITIONS - 2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    rounded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
