"""Draws a model's weights and saves them with a tokenizer and a chat template: `python -m … SHAPE FOLDER`.

No token ends a reply, and each one is one or two ASCII characters: a token is a piece of text, and lengths are exact.
"""

from __future__ import annotations

import sys
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.bench.engine.shapes import SHAPES, Shape

LETTERS = [chr(code) for code in range(0x21, 0x7F)]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save(shape: Shape, folder: Path) -> None:
    """Write a model folder as transformers reads it, the same one each time. Weights are stored in bfloat16."""
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(_config(shape))
    model = model.to(torch.bfloat16)
    with torch.no_grad():
        # Behind the last norm a hidden state has a root mean square of 1.
        model.lm_head.weight.normal_(0.0, shape.logit_spread / shape.hidden**0.5)
    generation: Any = model.generation_config
    generation.update(eos_token_id=None, do_sample=True, top_k=0)
    model.save_pretrained(folder)
    _tokenizer(shape).save_pretrained(folder)


def _config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.window,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _tokenizer(shape: Shape) -> Any:
    """Return a byte-level BPE over visible ASCII: single letters, then as many pairs as the vocabulary has room for."""
    pairs = list(islice(product(LETTERS, LETTERS), shape.vocabulary - len(LETTERS)))
    pieces = LETTERS + ["".join(pair) for pair in pairs]
    backend = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(pieces)}, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    untyped: Any = PreTrainedTokenizerFast
    tokenizer = untyped(tokenizer_object=backend)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def main() -> None:
    """Save: SHAPE FOLDER."""
    name, folder = sys.argv[1:]
    save(SHAPES[name], Path(folder))


if __name__ == "__main__":
    main()
