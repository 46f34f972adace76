"""Decides which options of the forward pass are served, and says why others are not. Knows no torch."""

from __future__ import annotations

from engine.errors import ModelNotUsable
from engine.options import ForwardOptions

SERVED_ATTENTION = frozenset({"auto", "midstream"})
SERVED_QUANTIZATION = frozenset({"none", "int8"})
INT8_DTYPES = frozenset({"bfloat16", "float32"})

_KNOWN_ATTENTION = ("sdpa", "eager", "flash", "flex", "paged", "sage")


def check_forward(options: ForwardOptions) -> None:
    """Raise ModelNotUsable, with the reason, for options that no device and no model can be served with."""
    if options.attn not in SERVED_ATTENTION:
        raise ModelNotUsable(_no_attention(options.attn))
    if options.quantize not in SERVED_QUANTIZATION:
        raise ModelNotUsable(
            f"--quantize {options.quantize} is not offered: int8 weights on a CPU are the only ones that were measured. "
            "--engine vllm serves other kinds."
        )
    if options.tensor_parallel != 1:
        raise ModelNotUsable(
            f"--tensor-parallel {options.tensor_parallel} is not offered: this engine runs a model on one device. "
            "Several engines can run, one on each device. --engine vllm spreads one model over several."
        )


def check_quantization(options: ForwardOptions, *, device: str, dtype: str) -> None:
    """Raise ModelNotUsable if int8 weights were asked for but gain nothing. `device`: its type, such as "cpu"."""
    if options.quantize == "none":
        return
    if device != "cpu":
        raise ModelNotUsable(
            f"--quantize {options.quantize} is not offered on {device}: it was run on CPUs only. "
            "Leave it out, use --device cpu, or serve a quantized checkpoint with --engine vllm."
        )
    if dtype not in INT8_DTYPES:
        raise ModelNotUsable(
            f"--quantize {options.quantize} is slower than {dtype} alone: use --dtype bfloat16 or float32 with it."
        )


def _no_attention(name: str) -> str:
    if not name.startswith(_KNOWN_ATTENTION):
        return f"{name!r} is not the name of an attention implementation; use auto or midstream."
    return (
        f"--attn {name} is not served: it can't read the pages of the KV cache, which let replies of all lengths "
        "share a forward pass. Use auto or midstream."
    )
