"""Draws a model's weights and saves them with a tokenizer and a chat template.

No token ends a reply, and each one is one to three ASCII characters: a token is a piece of text, and lengths are exact.
"""

from __future__ import annotations

from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.bench.engine.shapes import Shape

LETTERS = [chr(code) for code in range(0x21, 0x7F)]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save(shape: Shape, folder: Path, device: str = "cpu") -> None:
    """Write a model folder as transformers reads it, the same one each time. Weights are stored in bfloat16."""
    torch.manual_seed(0)
    kind: Any = Qwen2ForCausalLM if shape.qwen else LlamaForCausalLM
    # Billions of weights are drawn on the device that holds them, in the dtype that is stored.
    drawn_in = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model = kind._from_config(_config(shape), dtype=drawn_in).to(torch.bfloat16)
    with torch.no_grad():
        # After the last norm a hidden state has a root mean square of 1.
        model.lm_head.weight.normal_(0.0, shape.logit_spread / shape.hidden**0.5)
    generation: Any = model.generation_config
    generation.update(eos_token_id=None, do_sample=True, top_k=0)
    model.save_pretrained(folder)
    _tokenizer(shape).save_pretrained(folder)


def _config(shape: Shape) -> LlamaConfig | Qwen2Config:
    kind: Any = Qwen2Config if shape.qwen else LlamaConfig
    made: LlamaConfig | Qwen2Config = kind(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads or shape.heads,
        max_position_embeddings=shape.window,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return made


def _tokenizer(shape: Shape) -> Any:
    """Return a byte-level BPE over visible ASCII: single letters, then as many pairs as fit, then triples."""
    pairs = [*product(LETTERS, LETTERS)]
    triples = (("".join(pair), letter) for pair in pairs for letter in LETTERS)
    merges = list(islice(chain(pairs, triples), shape.vocabulary - len(LETTERS)))
    pieces = LETTERS + ["".join(merge) for merge in merges]
    backend = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    untyped: Any = PreTrainedTokenizerFast
    tokenizer = untyped(tokenizer_object=backend)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_gguf(folder: Path, file: Path) -> None:
    """Write a drawn Llama's folder as a GGUF file, its matrices in bfloat16, as llama.cpp reads it."""
    from tests.engine.gguf_files import write_gguf  # noqa: PLC0415 - a device may lack the package

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    write_gguf(file, model, tokenizer=tokenizer, template=TEMPLATE, is_bfloat16=True)
