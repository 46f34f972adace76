"""A model that always writes the same reply, since each of its tokens follows from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write_chain_model(
    folder: Path, tokenizer: PreTrainedTokenizerFast, words: Sequence[str], *, behind: str, end: str
) -> list[int]:
    """Save a model that writes these words, each a token, behind the token that prompts end with. Returns the reply's ids.

    No word may come twice. `end`: the end token.
    """
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    tokenizer.eos_token = end
    chain = tokenizer.convert_tokens_to_ids([behind, *words, end])
    assert len(set(chain)) == len(chain)
    model = LlamaForCausalLM(_config(tokenizer))
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(*model.model.embed_tokens.weight.shape))
        # Not zero, since the loader compares the model's logits with and without the cache.
        model.lm_head.weight.normal_(std=0.01)
        model.lm_head.weight[chain[1:], chain[:-1]] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return list(chain[1:])


def _config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
