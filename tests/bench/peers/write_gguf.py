"""Writes a Llama's folder as a GGUF file: `python write_gguf.py FOLDER FILE`, by a Python that has llama.cpp's gguf-py.

Weights stay in bfloat16, norms become float32, as llama.cpp wants them. Needs nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHITECTURE = "llama"
MOSTLY_BF16 = 32
"""`general.file_type`, as llama.cpp counts them."""
NORMAL_TOKEN = 1

Value = str | bool | int | float | list[str] | list[int]

OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INSIDE = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEADS = {"q": "head_count", "k": "head_count_kv"}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


def metadata(config: dict[str, Any], tokenizer: dict[str, Any], template: str) -> dict[str, Value]:
    """Return the file's facts of its model. `tokenizer` is the content of `tokenizer.json`. Pure."""
    model, heads = tokenizer["model"], config["num_attention_heads"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    rope = config.get("rope_parameters") or config
    return {
        "general.name": "random weights",
        "general.file_type": MOSTLY_BF16,
        "llama.vocab_size": config["vocab_size"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.dimension_count": config.get("head_dim") or config["hidden_size"] // heads,
        "llama.rope.freq_base": float(rope.get("rope_theta", 10_000.0)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL_TOKEN] * len(tokens),
        "tokenizer.ggml.merges": [one if isinstance(one, str) else " ".join(one) for one in model["merges"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }


def tensor_name(name: str) -> str:
    """Return llama.cpp's name of a weight. Pure. Raises KeyError if it has none of this kind."""
    if (inside := _LAYER.fullmatch(name)) is None:
        return OUTSIDE[name]
    layer, part = inside.groups()
    return f"blk.{layer}.{INSIDE[part]}.weight"


def interleaved(weight: Any, heads: int) -> Any:
    """Return rows of a query's or key's weight in llama.cpp's order: rotated pairs are neighbours. Pure."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns).copy()


def weights(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the names and the arrays of a safetensors file of bfloat16, as uninterpreted 16 bits."""
    numpy = importlib.import_module("numpy")
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
        body = opened.read()
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is stored as {entry['dtype']}, not as BF16")
        begin, end = entry["data_offsets"]
        yield name, numpy.frombuffer(body[begin:end], dtype="<u2").reshape(entry["shape"])


def write(folder: Path, file: Path) -> None:
    """Write the file. Raises OSError, ValueError, KeyError."""
    gguf, numpy = importlib.import_module("gguf"), importlib.import_module("numpy")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    facts = metadata(config, tokenizer, template)
    writer = gguf.GGUFWriter(str(file), ARCHITECTURE)
    for key, value in facts.items():
        _add(writer, key, value)
    heads = {part: int(str(facts[f"llama.attention.{key}"])) for part, key in HEADS.items()}
    for name, weight in weights(folder / "model.safetensors"):
        target = tensor_name(name)
        if weight.ndim == 1:
            writer.add_tensor(target, (weight.astype("<u4") << 16).view(numpy.float32))
            continue
        part = target.removesuffix(".weight").rpartition("attn_")[2]
        kept = interleaved(weight, heads[part]) if part in heads else weight
        writer.add_tensor(target, kept.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Value) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
