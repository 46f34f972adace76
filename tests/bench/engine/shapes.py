"""The measured models: shapes alone, since their weights are random. Knows no torch."""

from __future__ import annotations

import msgspec

WINDOW = 8192


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A Llama, or a Qwen2, of random weights. `window` counts positions, prompt and reply together.
    `kv_heads`: fewer than `heads`, where queries share them. `tied`: the embedding makes the logits as well.

    `logit_spread` is the standard deviation of the logits. At 3 and temperature 0.8, top-p 0.95 keeps some dozens of
    tokens, as it does in a trained model; freshly drawn weights would give 0.3, and a nucleus of the whole vocabulary.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    window: int = WINDOW
    logit_spread: float = 3.0
    kv_heads: int | None = None
    tied: bool = False
    qwen: bool = False


TINY = Shape(name="tiny", hidden=256, layers=6, heads=4, intermediate=688, vocabulary=2048)
SMALL = Shape(name="small", hidden=768, layers=12, heads=12, intermediate=2048, vocabulary=8192)
SPECK = Shape(name="speck", hidden=64, layers=2, heads=2, intermediate=128, vocabulary=512, window=128)
"""A model for measurements that need many turns and no speed."""

QWEN_1B5 = Shape(
    name="qwen-1.5b", hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960, vocabulary=151_936,
    tied=True, qwen=True,
)  # fmt: skip
LLAMA_8B = Shape(
    name="llama-8b", hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14_336, vocabulary=128_256
)
"""Shapes of models that are common on GPUs."""

SHAPES = {shape.name: shape for shape in (TINY, SMALL, SPECK, QWEN_1B5, LLAMA_8B)}
