"""The model's shape, how its weights begin, and how they are written to a folder."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model.tokenizer import LARGEST_NUMBER

_WELL_KNOWN = 500
_PERIODS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def new_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """A model of about two million weights for `tokenizer`; draws from torch's global generator."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=192,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    _place_numbers(model, tokenizer)
    return model


def carried_over(
    model: LlamaForCausalLM, known: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase
) -> LlamaForCausalLM:
    """`model`, which speaks through `known`, with another tokenizer: a token that is new is the mean of those it replaces.

    Numbers above 500 begin anew: where dialogues hardly had any, they have become all alike. Draws from torch's global generator.
    """
    new = new_model(tokenizer)
    weights = model.state_dict()
    old, rows = weights["model.embed_tokens.weight"], new.model.embed_tokens.weight.data
    vocabulary = known.get_vocab()
    for token, place in tokenizer.get_vocab().items():
        rows[place] = old[_places(token, vocabulary, known, str(tokenizer.decode([place])))].mean(0)
    _separate(rows, tokenizer)
    tied = {"model.embed_tokens.weight": rows, "lm_head.weight": rows}
    new.load_state_dict(weights | tied)
    return new


def _separate(rows: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the numbers that are not well known embeddings of their own, as far apart as those of the others."""
    places = [tokenizer.convert_tokens_to_ids(str(number)) for number in range(LARGEST_NUMBER + 1)]
    good, poor = rows[places[: _WELL_KNOWN + 1]], places[_WELL_KNOWN + 1 :]
    rows[poor] = good.mean(0) + good.std(0) * torch.randn(len(poor), rows.shape[1])


def _places(token: str, vocabulary: dict[str, int], known: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of what `known` spells a token with: itself, its text's tokens, or its bytes where it is part of a character."""
    if token in vocabulary:
        return [vocabulary[token]]
    if "\ufffd" in text:
        return [vocabulary[byte] for byte in token]
    return list(known.encode(text, add_special_tokens=False))


def _place_numbers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Begin the numbers' embeddings on circles, so that adding is turning (FoNE, Zhou et al. 2025, arXiv:2502.09741)."""
    weight = model.model.embed_tokens.weight.data
    for number in range(LARGEST_NUMBER + 1):
        row = weight[tokenizer.convert_tokens_to_ids(str(number))]
        angles = torch.tensor([2 * math.pi * number / period for period in _PERIODS])
        row.mul_(0.5)
        row[: 2 * len(_PERIODS)] = 0.08 * torch.cat((angles.cos(), angles.sin()))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a transformers checkpoint in bfloat16, with its tokenizer and its sampling defaults."""
    rounded: Any = copy.deepcopy(model)
    rounded.bfloat16()
    defaults: Any = GenerationConfig
    rounded.generation_config = defaults(
        do_sample=True,
        temperature=0.3,
        top_p=0.95,
        max_new_tokens=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    rounded.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
