"""Small GGUF files, as llama.cpp's converter writes them: a Llama of random weights with the tests' tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.engine.conftest import TEMPLATE, small_tokenizer

HEADS, KV_HEADS = 4, 2
BF16 = gguf.GGMLQuantizationType.BF16
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def some_llama() -> LlamaForCausalLM:
    """Return a model whose weights are exact in bfloat16."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(small_tokenizer()), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=512,
        initializer_range=0.3, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()
    return model


def write_gguf(
    file: Path,
    model: LlamaForCausalLM,
    *,
    architecture: str = "llama",
    tokenizer: PreTrainedTokenizerFast | None = None,
    template: str | None = TEMPLATE,
    is_bfloat16: bool = False,
    scaled: bool = False,
    without: str = "",
    sampling: Mapping[str, float] | None = None,
) -> Path:
    """Write a model in float32, or its matrices in bfloat16, with the tests' tokenizer or another one.

    `scaled`: with a table of rotary factors; `without`: leaves out tensors of this name. `sampling`: the values that it
    advises, by their names in the file.
    """
    config, made = model.config, gguf.GGUFWriter(file, architecture)
    made.add_name("random weights")
    made.add_vocab_size(config.vocab_size)
    made.add_context_length(config.max_position_embeddings)
    made.add_embedding_length(config.hidden_size)
    made.add_block_count(config.num_hidden_layers)
    made.add_feed_forward_length(config.intermediate_size)
    made.add_head_count(config.num_attention_heads)
    made.add_head_count_kv(config.num_key_value_heads)
    made.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    made.add_rope_freq_base(config.rope_parameters["rope_theta"])
    made.add_layer_norm_rms_eps(config.rms_norm_eps)
    _write_tokenizer(made, tokenizer or small_tokenizer(), template)
    for key, value in (sampling or {}).items():
        add = made.add_int32 if isinstance(value, int) else made.add_float32
        add(f"general.sampling.{key}", value)
    for name, weight in _tensors(model):
        if not without or without not in name:
            if is_bfloat16 and weight.ndim > 1:
                made.add_tensor(name, gguf.quants.quantize(weight, BF16), raw_dtype=BF16)
            else:
                made.add_tensor(name, weight)
    if scaled:
        made.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float32))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return file


def _write_tokenizer(made: gguf.GGUFWriter, tokenizer: Any, template: str | None) -> None:
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre("default")
    made.add_token_list(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
    special = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    made.add_token_types([3 if token in special else 1 for token in range(len(tokenizer))])
    made.add_token_merges([" ".join(pair) for pair in merges])
    if tokenizer.bos_token_id is None:
        made.add_add_bos_token(False)
    else:
        made.add_bos_token_id(tokenizer.bos_token_id)
        made.add_eos_token_id(tokenizer.eos_token_id)
    if template is not None:
        made.add_chat_template(template)


def _tensors(model: LlamaForCausalLM) -> list[tuple[str, Any]]:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    found = []
    for name, weight in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem in outer:
            found.append((f"{outer[stem]}.weight", weight.numpy()))
            continue
        _, _, layer, part = stem.split(".", 3)
        heads = {
            "self_attn.q_proj": model.config.num_attention_heads,
            "self_attn.k_proj": model.config.num_key_value_heads,
        }.get(part)
        rows = weight if heads is None else _interleaved(weight, heads)
        found.append((f"blk.{layer}.{NAMES[part]}.weight", rows.contiguous().numpy()))
    return found


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of a projection in llama.cpp's order, whose rotary pairs are neighbors."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
