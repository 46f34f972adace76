"""How the forward pass may be computed: which wishes are served, and why others are not. Knows no torch."""

from __future__ import annotations

from engine.errors import ModelNotUsable
from engine.options import ForwardOptions

SERVED_ATTENTION = frozenset({"auto", "midstream"})
SERVED_QUANTIZATION = frozenset({"none", "int8"})
INT8_DTYPES = frozenset({"bfloat16", "float32"})

_KNOWN_ATTENTION = ("sdpa", "eager", "flash", "flex", "paged", "sage")


def check_forward(asked: ForwardOptions) -> None:
    """Raise ModelNotUsable, with the reason, for what is served on no device and for no model."""
    if asked.attn not in SERVED_ATTENTION:
        raise ModelNotUsable(_no_attention(asked.attn))
    if asked.quantize not in SERVED_QUANTIZATION:
        raise ModelNotUsable(
            f"--quantize {asked.quantize} is not offered: int8 weights on a CPU are the only ones that were measured. "
            "--engine vllm serves other kinds."
        )
    if asked.tensor_parallel != 1:
        raise ModelNotUsable(
            f"--tensor-parallel {asked.tensor_parallel} is not offered: no model was run over several devices yet. "
            "Several engines, one on each device, are. --engine vllm serves one model over several."
        )


def check_quantization(asked: ForwardOptions, *, device: str, dtype: str) -> None:
    """Raise ModelNotUsable where int8 weights were asked for and gain nothing. `device`: its type, such as cpu."""
    if asked.quantize == "none":
        return
    if device != "cpu":
        raise ModelNotUsable(
            f"--quantize {asked.quantize} is not offered on {device}: it was run on CPUs only. "
            "Leave it out, say --device cpu, or let --engine vllm serve a quantized checkpoint."
        )
    if dtype not in INT8_DTYPES:
        raise ModelNotUsable(
            f"--quantize {asked.quantize} is slower than {dtype} alone: say --dtype bfloat16 or float32 with it."
        )


def _no_attention(asked: str) -> str:
    if not asked.startswith(_KNOWN_ATTENTION):
        return f"{asked!r} is not the name of an attention; auto and midstream are served."
    return (
        f"--attn {asked} is not served: it can't read the pages of the KV cache, over which replies of all lengths "
        "share a pass. Say auto or midstream."
    )
